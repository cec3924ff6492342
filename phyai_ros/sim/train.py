"""Make the built-in policy from nothing: record demonstrations, fit the network, write the checkpoint, test it."""

from __future__ import annotations

import copy
import math
import platform
import time
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from phyai_adapters.flow_tiny import FlowTiny, FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig, write_checkpoint, write_config
from phyai_core.engine import Engine
from phyai_ros.sim import task
from phyai_ros.sim.arm import CONTROL_DT_S
from phyai_ros.sim.dataset import Recipe, Samples, load_or_generate
from phyai_ros.sim.evaluate import Evaluation, Setting, evaluate
from phyai_ros.sim.flow_matching import Normalised, Schedule, fit

DATA_WORKERS = 2
LOSS_SMOOTHING = 0.98


@dataclass(frozen=True)
class TrainConfig:
    """What a training run does. The defaults made the weights that ship with the package."""

    episodes: int = 1200  # demonstrations
    steps: int = 5000
    seed: int = 0
    evaluation_episodes: int = 100
    batch: int = 256

    def __post_init__(self) -> None:
        for name, least in (("episodes", 1), ("steps", 1), ("seed", 0), ("evaluation_episodes", 1), ("batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is too small; give {least} or more.")


QUICK = TrainConfig(
    episodes=6, steps=20, evaluation_episodes=2, batch=64
)  # checks that everything works, learns nothing


@dataclass(frozen=True)
class TrainResult:
    """What a training run made, and how it does."""

    checkpoint: Path
    samples: int
    parameters: int
    loss: float
    data_s: float
    fit_s: float
    evaluation: Evaluation


def train(out_dir: Path, config: TrainConfig, show_progress: bool = True) -> TrainResult:
    """Train into `out_dir`, which then is a checkpoint; the demonstrations are kept beside it in `out_dir`/data.

    Uses one core for the fit, two for the demonstrations. Raises ValueError where the camera cannot be rendered.
    """
    torch.set_num_threads(1)  # on a shared machine a second thread costs more than it gives
    with _progress(show_progress) as progress:
        began_s = time.monotonic()
        samples = _record(out_dir / "data", config, progress)
        recorded_s = time.monotonic()
        network, description, loss = _fit(samples, config, progress)
        fitted_s = time.monotonic()
        write_checkpoint(out_dir, description, network.state_dict())
        evaluation = _test(out_dir, config.evaluation_episodes, progress)
    write_config(out_dir, replace(description, measured=describe_measurement(evaluation)))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    seconds = (recorded_s - began_s, fitted_s - recorded_s)
    return TrainResult(out_dir, len(samples), parameters, loss, *seconds, evaluation)


def _record(folder: Path, config: TrainConfig, progress: Progress) -> Samples:
    bar = progress.add_task("demonstrations", total=config.episodes, note="")
    recipe = Recipe(config.episodes, config.seed)
    workers = DATA_WORKERS if config.episodes >= 50 else 1
    return load_or_generate(folder, recipe, workers, lambda episodes: progress.advance(bar, episodes))


def _fit(samples: Samples, config: TrainConfig, progress: Progress) -> tuple[FlowTinyNetwork, FlowTinyConfig, float]:
    """The averaged network, its description, and the smoothed loss at the end."""
    data = Normalised(samples)
    description = _describe(data, config)
    torch.manual_seed(config.seed)
    network = FlowTinyNetwork(description)
    averaged = copy.deepcopy(network).requires_grad_(False)
    bar = progress.add_task("fit", total=config.steps, note="")
    smoothed = math.nan
    schedule = Schedule(steps=config.steps, batch=config.batch)
    for loss in fit(network, averaged, data, schedule, config.seed):
        smoothed = loss if math.isnan(smoothed) else LOSS_SMOOTHING * smoothed + (1 - LOSS_SMOOTHING) * loss
        progress.update(bar, advance=1, note=f"loss {smoothed:.4f}")
    return averaged, description, smoothed


def _test(checkpoint: Path, episodes: int, progress: Progress) -> Evaluation:
    """Success of what was written, rounding to fp16 included."""
    bar = progress.add_task("closed loop", total=episodes, note="")
    successes = 0

    def count(result: Any) -> None:
        nonlocal successes
        successes += result.success
        progress.update(bar, advance=1, note=f"successes {successes}")

    cpu = torch.device("cpu")
    return evaluate(Engine(FlowTiny.load(checkpoint, cpu), cpu), Setting(), episodes, on_episode=count)


def _describe(data: Normalised, config: TrainConfig) -> FlowTinyConfig:
    def plain(values: np.ndarray) -> tuple[float, ...]:
        return tuple(float(value) for value in values)

    return FlowTinyConfig(
        state=task.STATE,
        action=task.ACTION,
        state_mean=plain(data.state_mean),
        state_std=plain(data.state_std),
        action_mean=plain(data.action_mean),
        action_std=plain(data.action_std),
        camera_key=task.CAMERA.key,
        image_size=task.CAMERA.height,
        horizon=task.ACTION_HORIZON,
        dt_s=CONTROL_DT_S,
        training={**asdict(config), "torch": torch.__version__},
    )


def describe_measurement(evaluation: Evaluation) -> dict[str, Any]:
    """The figures of `evaluation` for flow_tiny.json, with where and when they were measured."""
    figures = asdict(evaluation).items()
    rounded = {name: round(value, 3) if math.isfinite(value) else None for name, value in figures}  # JSON has no NaN
    return {
        "what": "stepped simulation, no inference delay, a new chunk every 8 ticks",
        **rounded,
        "machine": f"{platform.system()} {platform.machine()}, CPU",
        "date": date.today().isoformat(),
    }


def _progress(show: bool) -> Progress:
    return Progress(
        TextColumn("{task.description:>14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        disable=not show,
    )
