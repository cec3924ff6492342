"""The options of `phyai-ros replay`, in the groups in which --help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MANY = "; repeat it"
OUTPUT, WHAT_IF, NAMES = "What to write and to require", "What if", "How the bag is read"

BagFile = Annotated[Path, typer.Argument(help="rosbag2 folder, or an .mcap or .db3 file")]
Params = Annotated[
    Path | None, typer.Option(help="Parameter file of the policy node; without one only the data are checked")
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="Checkpoint in place of inference.checkpoint of the parameter file")
]
Latency = Annotated[
    str, typer.Option(help="Of each inference: seconds, recorded, or measured; auto: recorded, else 0.02")
]
Compare = Annotated[
    str, typer.Option(help="Topic that the commands are compared with; by default recorded commands, else joints")
]
Gripper = Annotated[
    list[str] | None, typer.Option(help=f"A joint whose openings are compared; by default those named so{MANY}")
]

Out = Annotated[
    Path | None,
    typer.Option(help="Folder for actions.csv, report.html, report.json and timings.jsonl", rich_help_panel=OUTPUT),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report as JSON", rich_help_panel=OUTPUT)]
Write = Annotated[
    Path | None,
    typer.Option(help="Write chunks, control times and commands as a bag (.mcap, or a folder)", rich_help_panel=OUTPUT),
]
Require = Annotated[
    list[str] | None,
    typer.Option(help=f"Exit with 1 unless this holds, e.g. open_loop.ratio<1{MANY}", rich_help_panel=OUTPUT),
]

InjectDelay = Annotated[float, typer.Option(help="Inference takes so much longer, s", rich_help_panel=WHAT_IF)]
LatencyTrace = Annotated[
    Path | None,
    typer.Option(help="Latencies of a bag with ControlTiming, or of a timings.jsonl", rich_help_panel=WHAT_IF),
]
Jitter = Annotated[float, typer.Option(help="Latencies scatter upwards by this deviation, s", rich_help_panel=WHAT_IF)]
DropCamera = Annotated[
    list[str] | None,
    typer.Option(help=f"A camera loses pictures, as key:share, front:0.1{MANY}", rich_help_panel=WHAT_IF),
]
Mode = Annotated[str, typer.Option(help="Another rtc.mode", rich_help_panel=WHAT_IF)]
Device = Annotated[
    str, typer.Option(help="Another inference.device, with latencies measured on it", rich_help_panel=WHAT_IF)
]
Param = Annotated[
    list[str] | None,
    typer.Option("--param", "-p", help=f"Another parameter, as name:=value{MANY}", rich_help_panel=WHAT_IF),
]
Seed = Annotated[int, typer.Option(min=0, help="Of jitter and lost pictures", rich_help_panel=WHAT_IF)]

Remap = Annotated[
    list[str] | None, typer.Option(help=f"Read a topic under another name, OLD:=NEW{MANY}", rich_help_panel=NAMES)
]
Node = Annotated[str, typer.Option(help="Name of the policy node", rich_help_panel=NAMES)]
Namespace = Annotated[str, typer.Option(help="Namespace of the policy node", rich_help_panel=NAMES)]
Clock = Annotated[
    str,
    typer.Option(help="What ROS time was: log times, or header stamps (bags of simulated time)", rich_help_panel=NAMES),
]
