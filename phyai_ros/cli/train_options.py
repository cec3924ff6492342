"""The options of `phyai-ros train`, in the groups in which --help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SIMULATED, BAG = "From the simulated robot", "From a bag"

Out = Annotated[Path, typer.Option(help="Folder of the new checkpoint")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps; by default as for the shipped weights")]
Seed = Annotated[int, typer.Option(help="Seed of demonstrations and fit")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures")]

Episodes = Annotated[
    int | None,
    typer.Option(
        help="Demonstrations to record, kept in the folder data of --out; by default as for the shipped weights",
        rich_help_panel=SIMULATED,
    ),
]
RtcMaxDelay = Annotated[
    int,
    typer.Option(
        help="Teach a checkpoint to continue up to so many rows (rtc.mode trained); 0: do not",
        rich_help_panel=SIMULATED,
    ),
]
Start = Annotated[
    Path | None,
    typer.Option(
        help="Checkpoint to go on from; with --rtc-max-delay the shipped one by default", rich_help_panel=SIMULATED
    ),
]
Evaluate = Annotated[
    int | None, typer.Option(help="Episodes of the closed-loop test; by default 100", rich_help_panel=SIMULATED)
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="A minute of everything, to see that it works; learns nothing", rich_help_panel=SIMULATED
    ),
]
MinSuccessRate = Annotated[float, typer.Option(min=0, max=1, help="Exit with 1 below this", rich_help_panel=SIMULATED)]

BagFile = Annotated[
    Path | None, typer.Option(help="Learn from the episodes of this bag instead; needs --params", rich_help_panel=BAG)
]
Params = Annotated[Path | None, typer.Option(help="Parameter file that names its topics", rich_help_panel=BAG)]
HeldOut = Annotated[int, typer.Option(min=0, help="Episodes at its end to judge by", rich_help_panel=BAG)]
