"""`phyai-ros train`: make the built-in policy from nothing, and say how it does in closed loop."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from phyai_ros.sim.train import TrainConfig, TrainResult


def train(
    out: Annotated[
        Path, typer.Option(help="Folder of the new checkpoint; demonstrations are kept in its folder data")
    ] = Path("out/train"),
    episodes: Annotated[
        int | None, typer.Option(help="Demonstrations to record; by default as for the shipped weights")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; by default as for the shipped weights")] = None,
    rtc_max_delay: Annotated[
        int, typer.Option(help="Teach a checkpoint to continue up to so many rows (rtc.mode trained); 0: do not")
    ] = 0,
    start: Annotated[
        Path | None, typer.Option(help="Checkpoint to go on from; with --rtc-max-delay the shipped one by default")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of demonstrations and fit")] = 0,
    evaluate: Annotated[int | None, typer.Option(help="Episodes of the closed-loop test; by default 100")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute of everything, to see that it works; learns nothing")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
    min_success_rate: Annotated[float, typer.Option(min=0, max=1, help="Exit with 1 below this")] = 0.0,
    bag: Annotated[
        Path | None, typer.Option(help="Learn from the episodes of this bag instead; needs --params")
    ] = None,
    params: Annotated[Path | None, typer.Option(help="With --bag: parameter file that names its topics")] = None,
    held_out: Annotated[int, typer.Option(min=0, help="With --bag: episodes at its end to judge by")] = 5,
) -> None:
    """Record demonstrations, fit the built-in policy, write a checkpoint and test it in closed loop."""
    if bag is not None:
        from phyai_ros.cli.train_bag import train_on

        train_on(bag, params, out, held_out, steps, seed, json_file)
        return
    try:
        from phyai_ros.sim.train import FOR_RTC, QUICK, TESTED_DELAY, TrainConfig
        from phyai_ros.sim.train import train as run_training
    except ModuleNotFoundError as error:
        raise ValueError(
            f"training needs the Python package {error.name}; run make setup, or pip install it."
        ) from error

    given = {"episodes": episodes, "steps": steps, "evaluation_episodes": evaluate}
    base = QUICK if quick else FOR_RTC if rtc_max_delay else TrainConfig()
    base = replace(base, rtc_max_delay=rtc_max_delay, start=start)
    config = replace(base, seed=seed, **{name: value for name, value in given.items() if value is not None})
    try:
        result = run_training(out, config)
    except RuntimeError as error:
        raise CommandFailed(str(error)) from error
    measured = result.evaluation
    console = Console()
    delay = f"at a delay of {TESTED_DELAY} ticks" if rtc_max_delay else "without delay"
    console.print(
        f"checkpoint: {result.checkpoint}\n"
        f"succeeded: {measured.successes} of {measured.episodes} episodes {delay}\n"
        f"jerk of commands: {_shown(measured.jerk_rad_s3)} rad/s³, mean seam {_shown(measured.seam_mrad)} mrad\n"
        f"time: {result.data_s:.0f} s demonstrations, {result.fit_s:.0f} s fit",
        highlight=False,
        markup=False,
    )
    if json_file is not None:
        write_json(json_file, report(result, config))
    if measured.success_rate < min_success_rate:
        raise CommandFailed(f"success rate {measured.success_rate:.2f} is below the {min_success_rate:g} asked for")


def _shown(value: float) -> str:
    return f"{value:.0f}" if isfinite(value) else "unknown"


def report(result: TrainResult, config: TrainConfig) -> dict[str, Any]:
    """The figures of a training run under the names they have in the JSON file."""
    return {
        "checkpoint": str(result.checkpoint),
        "samples": result.samples,
        "parameters": result.parameters,
        "loss": result.loss,
        "data_s": round(result.data_s, 1),
        "fit_s": round(result.fit_s, 1),
        "success_rate": result.evaluation.success_rate,
        **{f"config_{name}": value for name, value in asdict(config).items() if name != "start"},
        "config_start": None if config.start is None else str(config.start),
        **{name: value if isfinite(value) else None for name, value in asdict(result.evaluation).items()},
        **host_facts(),
    }
