"""Make the built-in policy: record demonstrations, fit the network, write the checkpoint, test it.

From nothing, or from a checkpoint that is taught to continue a prefix (training-time real-time chunking).
"""

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

from phyai_adapters.flow_tiny import SHIPPED_CHECKPOINT, FlowTiny, FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig, read_checkpoint, write_checkpoint, write_config
from phyai_core.engine import Engine
from phyai_core.execution import ExecutorConfig
from phyai_core.rtc import RtcConfig
from phyai_ros.sim import task
from phyai_ros.sim.arm import CONTROL_DT_S
from phyai_ros.sim.dataset import Recipe, Samples, load_or_generate
from phyai_ros.sim.evaluate import Evaluation, Setting, evaluate
from phyai_ros.sim.flow_matching import Normalised, Schedule, fit

DATA_WORKERS = 2
# 10 rather than 5: swaps under real-time chunking are smoother (5 against 9 mrad at a delay of 7 ticks), for 3 ms more.
DENOISE_STEPS = 10
LOSS_SMOOTHING = 0.98


@dataclass(frozen=True)
class TrainConfig:
    """What a training run does. The defaults made the weights that ship with the package."""

    episodes: int = 1200  # demonstrations
    steps: int = 5000
    seed: int = 0
    evaluation_episodes: int = 100
    batch: int = 256
    rtc_max_delay: int = 0  # ticks; above 0: taught to continue up to so many rows that are given clean
    start: Path | None = None  # checkpoint to go on from; None: from nothing, or the shipped one for rtc_max_delay
    learning_rate: float = 1.5e-3

    def __post_init__(self) -> None:
        least = {"episodes": 1, "steps": 1, "seed": 0, "evaluation_episodes": 1, "batch": 1, "rtc_max_delay": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{name}: {getattr(self, name)} is too small; give {smallest} or more.")
        if self.rtc_max_delay > task.ACTION_HORIZON // 2:
            raise ValueError(
                f"rtc_max_delay: {self.rtc_max_delay} is too large; give at most {task.ACTION_HORIZON // 2} ticks, "
                "half the action horizon."
            )


# Checks that everything works, learns nothing.
QUICK = TrainConfig(episodes=6, steps=20, evaluation_episodes=2, batch=64)
# What made flow_tiny_rtc from flow_tiny: a clean prefix of 0 to 12 rows, drawn evenly.
FOR_RTC = TrainConfig(steps=6000, rtc_max_delay=12, learning_rate=1e-3)
TESTED_DELAY = 8  # ticks, of a policy that is taught to continue a prefix


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
        evaluation = _test(out_dir, config, progress)
    write_config(out_dir, replace(description, measured=describe_measurement(evaluation, _test_setting(config))))
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
    if config.start or config.rtc_max_delay:
        network.load_state_dict(_read_start(config.start or SHIPPED_CHECKPOINT, description))
    averaged = copy.deepcopy(network).requires_grad_(False)
    bar = progress.add_task("fit", total=config.steps, note="")
    smoothed = math.nan
    schedule = Schedule(
        steps=config.steps,
        batch=config.batch,
        learning_rate=config.learning_rate,
        max_prefix_rows=config.rtc_max_delay,
    )
    for loss in fit(network, averaged, data, schedule, config.seed):
        smoothed = loss if math.isnan(smoothed) else LOSS_SMOOTHING * smoothed + (1 - LOSS_SMOOTHING) * loss
        progress.update(bar, advance=1, note=f"loss {smoothed:.4f}")
    return averaged, description, smoothed


def _read_start(folder: Path, description: FlowTinyConfig) -> dict[str, torch.Tensor]:
    """Weights to go on from. Raises ValueError where they belong to data of other means and deviations."""
    begun, weights = read_checkpoint(folder, lambda config: FlowTinyNetwork(config).state_dict())
    for name in ("state_mean", "state_std", "action_mean", "action_std"):
        if not np.allclose(getattr(begun, name), getattr(description, name), rtol=1e-3, atol=1e-4):
            raise ValueError(
                f"start: {folder} has another {name} than these demonstrations; "
                "train with the episodes and the seed that it was made with."
            )
    return weights


def _test_setting(config: TrainConfig) -> Setting:
    """How the policy is meant to be executed."""
    if not config.rtc_max_delay:
        return Setting()
    executor = ExecutorConfig(mode="trained", execution_horizon=8, delay_initial=TESTED_DELAY)
    return Setting(TESTED_DELAY, executor, RtcConfig("trained"))


def _test(checkpoint: Path, config: TrainConfig, progress: Progress) -> Evaluation:
    """Success of what was written, rounding to fp16 included."""
    episodes = config.evaluation_episodes
    bar = progress.add_task("closed loop", total=episodes, note="")
    successes = 0

    def count(result: Any) -> None:
        nonlocal successes
        successes += result.success
        progress.update(bar, advance=1, note=f"successes {successes}")

    cpu = torch.device("cpu")
    return evaluate(Engine(FlowTiny.load(checkpoint, cpu), cpu), _test_setting(config), episodes, on_episode=count)


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
        denoise_steps=DENOISE_STEPS,
        rtc_max_delay=config.rtc_max_delay,
        training={**asdict(config), "start": config.start and config.start.name, "torch": torch.__version__},
    )


def describe_measurement(evaluation: Evaluation, setting: Setting) -> dict[str, Any]:
    """The figures of `evaluation` for flow_tiny.json, with where and when they were measured."""
    figures = asdict(evaluation).items()
    rounded = {name: round(value, 3) if math.isfinite(value) else None for name, value in figures}  # JSON has no NaN
    delay = f"an inference delay of {setting.delay_ticks} ticks" if setting.delay_ticks else "no inference delay"
    return {
        "what": f"stepped simulation, {delay}, mode {setting.rtc.mode}, a new chunk every 8 ticks",
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
