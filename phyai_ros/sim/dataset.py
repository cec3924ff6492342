"""Demonstrations: the expert acts in the stepped simulation, and every tick becomes one sample.

A sample is an observation, with sensors as old as they are in real time, and the expert's next H rows from there. Now
and then the command is knocked off its course; the label is the plan from the disturbed state, which teaches to come
back.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import FloatArray
from phyai_ros.sim.arm import BELT_X_M, CONTROL_DT_S, POST_X_M
from phyai_ros.sim.expert import joints_for, plan, point_for
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.task import ACTION_HORIZON, CAMERA, REAL_TIME_AGE, Outcome, Start, StepSim, draw_start, start_at

FORMAT = 1  # raise it when the recorded data change, so that an old cache is not used
EPISODES_PER_SHARD = 10
EPISODE_TICKS = 100
LAST_PUCK_Y_M = -0.22

ANYWHERE_SHARE = 0.35
DISTURBED_SHARE = 0.08
DISTURBANCE_M = 0.01
DISTURBANCE_M_S = 0.06
STOP_AFTER_SUCCESS = 0.15  # per tick, so that some episodes go on following the puck


@dataclass(frozen=True)
class Recipe:
    """What fixes a data set completely."""

    episodes: int = 600
    seed: int = 0
    format: int = FORMAT


@dataclass(frozen=True)
class Samples:
    """N samples in time order within an episode."""

    images: NDArray[np.uint8]  # [N, h, w, 3]
    states: FloatArray  # [N, S]
    actions: FloatArray  # [N, H, A]

    def __len__(self) -> int:
        return len(self.states)

    @staticmethod
    def join(parts: list[Samples]) -> Samples:
        """All samples of `parts`, in order."""
        return Samples(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "states", "actions"))
        )


def load_or_generate(
    folder: Path, recipe: Recipe, workers: int = 2, on_progress: Callable[[int], None] = lambda episodes: None
) -> Samples:
    """The data set of `recipe`, from `folder` where it was kept before, else recorded now and kept there.

    `on_progress` gets the number of episodes just finished. About 1 minute for 600 episodes and 450 MB of disk.
    """
    recipe_file, data_file = folder / "recipe.json", folder / "samples.npz"
    if data_file.is_file() and recipe_file.is_file() and json.loads(recipe_file.read_text()) == asdict(recipe):
        with np.load(data_file) as kept:
            samples = Samples(kept["images"], kept["states"], kept["actions"])
        on_progress(recipe.episodes)
        return samples
    samples = generate(recipe, workers, on_progress)
    folder.mkdir(parents=True, exist_ok=True)
    recipe_file.unlink(missing_ok=True)  # written last: its presence says that the data are complete
    np.savez(data_file, images=samples.images, states=samples.states, actions=samples.actions)
    recipe_file.write_text(json.dumps(asdict(recipe)))
    return samples


def generate(recipe: Recipe, workers: int = 2, on_progress: Callable[[int], None] = lambda episodes: None) -> Samples:
    """Record `recipe.episodes` episodes in `workers` processes; the result does not depend on `workers`."""
    if recipe.episodes < 1:
        raise ValueError(f"episodes: {recipe.episodes} is too few; give 1 or more.")
    starts = range(0, recipe.episodes, EPISODES_PER_SHARD)
    shards = [range(first, min(first + EPISODES_PER_SHARD, recipe.episodes)) for first in starts]
    if workers <= 1:
        return Samples.join([_recorded(shard, recipe.seed, on_progress) for shard in shards])
    parts = []
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for shard, part in zip(shards, pool.map(record_shard, shards, [recipe.seed] * len(shards)), strict=True):
            parts.append(part)
            on_progress(len(shard))
    return Samples.join(parts)


def _recorded(shard: range, seed: int, on_progress: Callable[[int], None]) -> Samples:
    part = record_shard(shard, seed)
    on_progress(len(shard))
    return part


def record_shard(episodes: range, seed: int) -> Samples:
    """Record some episodes of the data set `seed`, in this process."""
    with Scene() as scene:
        sim = StepSim(scene, REAL_TIME_AGE)
        return Samples.join([record_episode(sim, np.random.default_rng([seed, episode])) for episode in episodes])


def record_episode(sim: StepSim, rng: np.random.Generator) -> Samples:
    """One demonstration; everything random in it comes from `rng`."""
    start, side = _draw_demonstration(rng)
    sim.reset(start, seed=int(rng.integers(2**31)))
    tool, velocity = complex(point_for(start.joints)), 0j
    images, states, actions = [], [], []
    for _ in range(EPISODE_TICKS):
        if rng.random() < DISTURBED_SHARE:
            tool, velocity = _disturb(tool, velocity, rng)
            sim.last_command = joints_for(tool)
        observation = sim.observe()
        points = plan(tool, velocity, sim.puck_y_m, side, ACTION_HORIZON)
        images.append(observation.images[CAMERA.key])
        states.append(observation.state)
        actions.append(joints_for(points))
        tool, velocity = complex(points[0]), complex(points[0] - tool) / CONTROL_DT_S
        outcome = sim.step(actions[-1][0])
        if outcome is Outcome.CONTACT or sim.puck_y_m < LAST_PUCK_Y_M:
            break
        if outcome is Outcome.SUCCESS and rng.random() < STOP_AFTER_SUCCESS:
            break
    return Samples(np.stack(images), np.stack(states), np.stack(actions))


def _draw_demonstration(rng: np.random.Generator) -> tuple[Start, int]:
    """A start, and the side to pass the post on: a coin, unless the tool already stands to one side."""
    coin = int(rng.choice([-1, 1]))
    if rng.random() >= ANYWHERE_SHARE:
        return draw_start(rng), coin
    tool = complex(rng.uniform(0.13, 0.45), rng.uniform(-0.17, 0.17))
    if abs(tool - POST_X_M) < 0.05:
        tool = complex(tool.real, coin * 0.08)
    side = (1 if tool.imag > 0 else -1) if abs(tool.imag) > 0.03 else coin
    return start_at(tool, rng.uniform(-0.12, 0.17)), side


def _disturb(tool: complex, velocity: complex, rng: np.random.Generator) -> tuple[complex, complex]:
    """Knock the command aside, unless that would put it into the post."""
    moved = tool + complex(*rng.normal(0, DISTURBANCE_M, 2))
    if abs(moved - POST_X_M) < 0.055 or moved.real > BELT_X_M + 0.04:
        return tool, velocity
    return moved, velocity + complex(*rng.normal(0, DISTURBANCE_M_S, 2))
