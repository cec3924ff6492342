"""`phyai-ros train`: make the built-in policy from nothing, and say how it does in closed loop."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from phyai_ros.cli import train_options as options
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from phyai_ros.sim.train import TrainConfig, TrainResult


def train(
    out: options.Out = Path("out/train"),
    steps: options.Steps = None,
    seed: options.Seed = 0,
    json_file: options.JsonFile = None,
    episodes: options.Episodes = None,
    rtc_max_delay: options.RtcMaxDelay = 0,
    start: options.Start = None,
    evaluate: options.Evaluate = None,
    quick: options.Quick = False,
    min_success_rate: options.MinSuccessRate = 0.0,
    bag: options.BagFile = None,
    params: options.Params = None,
    held_out: options.HeldOut = 5,
) -> None:
    """Record demonstrations, fit the built-in policy, write a checkpoint and test it in closed loop."""
    given = SimpleNamespace(**locals())
    if bag is not None:
        from phyai_ros.cli.train_bag import train_on

        train_on(bag, params, out, held_out, steps, seed, json_file)
        return
    config = _make_config(given)
    result = _run_training(out, config)
    _show(result, config)
    if json_file is not None:
        write_json(json_file, report(result, config))
    success_rate = result.evaluation.success_rate
    if success_rate < min_success_rate:
        raise CommandFailed(f"success rate {success_rate:.2f} is below the {min_success_rate:g} asked for")


def _make_config(given: SimpleNamespace) -> TrainConfig:
    """What was given, and for the rest what fits it."""
    try:
        from phyai_ros.sim.train import FOR_RTC, QUICK, TrainConfig
    except ModuleNotFoundError as error:
        raise ValueError(
            f"training needs the Python package {error.name}; run make setup, or pip install it."
        ) from error
    base = QUICK if given.quick else FOR_RTC if given.rtc_max_delay else TrainConfig()
    counts = {"episodes": given.episodes, "steps": given.steps, "evaluation_episodes": given.evaluate}
    counts = {name: value for name, value in counts.items() if value is not None}
    return replace(base, rtc_max_delay=given.rtc_max_delay, start=given.start, seed=given.seed, **counts)


def _run_training(out: Path, config: TrainConfig) -> TrainResult:
    from phyai_ros.sim.train import train as run_training

    try:
        return run_training(out, config)
    except RuntimeError as error:
        raise CommandFailed(str(error)) from error


def _show(result: TrainResult, config: TrainConfig) -> None:
    from phyai_ros.sim.train import TESTED_DELAY

    measured = result.evaluation
    delay = f"at a delay of {TESTED_DELAY} ticks" if config.rtc_max_delay else "without delay"
    Console().print(
        f"checkpoint: {result.checkpoint}\n"
        f"succeeded: {measured.successes} of {measured.episodes} episodes {delay}\n"
        f"jerk of commands: {_shown(measured.jerk_rad_s3)} rad/s³, mean seam {_shown(measured.seam_mrad)} mrad\n"
        f"time: {result.data_s:.0f} s demonstrations, {result.fit_s:.0f} s fit",
        highlight=False,
        markup=False,
    )


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
