"""Fits the small policy to the demonstrations of a bag: pictures and joint positions in, the next positions out.

The last episodes are not learned from; they become a bag of their own, for `phyai-ros replay` to judge the policy by.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phyai_adapters.flow_tiny import FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig, write_checkpoint
from phyai_core.types import Feature
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_writer import BagWriter
from phyai_ros.replay.cross_validation import CrossValidation, cross_validate
from phyai_ros.replay.demonstrations import IMAGE_SIZE, Demonstrations, Episode, make_samples, read_demonstrations
from phyai_ros.replay.topics import NodeName
from phyai_ros.settings import Settings
from phyai_ros.sim.dataset import Samples
from phyai_ros.sim.flow_matching import Normalised, Schedule, fit

METRES, PLAIN = ("x", "y", "z"), ("gripper",)  # names of a pose; everything else is an angle
HELD_OUT_FILE = "held_out.mcap"
AUGMENTATIONS = {  # how pictures and states are changed while learning, so that none is learned by heart
    "light": {"state_noise": 0.02, "shift_px": 1, "brightness": 0.1},
    "medium": {"state_noise": 0.3, "shift_px": 8, "brightness": 0.4},
    "strong": {"state_noise": 1.0, "shift_px": 32, "brightness": 0.9},
}
NOISES = 4  # draws per moment when predictions are judged


@dataclass(frozen=True)
class BagTraining:
    """`horizon` rows per chunk; of the episodes the last `held_out` are kept for judging.

    With one denoise step a chunk is the mean of what the demonstrations do, which is what few of them can teach.
    `augmentation` and `steps` are what tools/choose_bag_training.py found best for the bag of the tests.
    """

    horizon: int = 8
    held_out: int = 5
    steps: int = 800
    seed: int = 0
    batch: int = 64
    denoise_steps: int = 1
    width: int = 256
    condition: int = 16
    blocks: int = 2
    learning_rate: float = 2e-3
    augmentation: str = "medium"
    folds: int = 4  # of the cross-validation that says how far each joint's prediction can be trusted
    fold_steps: int = 800


def train_on_bag(
    bag_path: Path, settings: Settings, config: BagTraining, out_dir: Path, on_step: Callable[[int, float], None]
) -> dict[str, Any]:
    """Write a checkpoint of flow_tiny_relative and the held-out episodes into `out_dir`. Returns figures.

    `on_step(step, loss)` hears the progress. Raises ValueError where the bag does not hold what is needed.
    """
    torch.set_num_threads(1)
    with Bag(bag_path) as bag:
        shown, taught, key = open_episodes(bag, settings, config.held_out)
        kept = shown.episodes[len(taught) :]
        validated = validate(taught, shown, key, config, on_step)
        trust = np.ones(len(shown.names)) if validated is None else validated.trust()
        samples = make_samples(taught, config.horizon)
        network, description, loss = _fit(samples, shown, key, config, on_step)
        write_checkpoint(out_dir, scale(description, trust), network.state_dict())
        if kept:
            _write_from(bag, kept[0].stamps_ns[0], out_dir / HELD_OUT_FILE)
    return {
        "checkpoint": str(out_dir),
        "episodes": len(taught),
        "held_out_episodes": len(kept),
        "samples": len(samples),
        "dt_s": shown.dt_s,
        "loss": loss,
        "cross_validated_ratio": math.nan if validated is None else validated.ratio,
        "trust": dict(zip(shown.names, trust.tolist(), strict=True)),
    }


def open_episodes(bag: Bag, settings: Settings, held_out: int) -> tuple[Demonstrations, Sequence[Episode], str]:
    """All that the bag shows, the episodes to learn from, and the key of the camera."""
    key, node = _only_camera(settings), NodeName()
    topics = (settings.cameras.by_key[key].topic, settings.inputs.joint_states_topic)
    shown = read_demonstrations(bag, *map(node.resolve, topics))
    if not 0 <= held_out < len(shown.episodes):
        raise ValueError(f"--held-out is {held_out}; {bag.path} has {len(shown.episodes)} episodes, keep fewer out.")
    return shown, shown.episodes[: len(shown.episodes) - held_out], key


def _only_camera(settings: Settings) -> str:
    if len(settings.cameras.keys) != 1:
        raise ValueError(f"cameras.keys is {list(settings.cameras.keys)}; allowed is one camera: the policy sees one.")
    return settings.cameras.keys[0]


def _fit(
    samples: Samples, shown: Demonstrations, camera_key: str, config: BagTraining, on_step: Callable[[int, float], None]
) -> tuple[FlowTinyNetwork, FlowTinyConfig, float]:
    data = Normalised(samples)
    description = _describe(data, shown, camera_key, config)
    torch.manual_seed(config.seed)
    network = FlowTinyNetwork(description)
    averaged = copy.deepcopy(network).requires_grad_(False)
    schedule = Schedule(
        steps=config.steps,
        batch=config.batch,
        learning_rate=config.learning_rate,
        noise_draws=16,
        ema_decay=0.99,
        **AUGMENTATIONS[config.augmentation],
    )
    loss = math.nan
    for step, loss in enumerate(fit(network, averaged, data, schedule, config.seed), 1):
        on_step(step, loss)
    return averaged, description, loss


def validate(
    episodes: Sequence[Episode],
    shown: Demonstrations,
    camera_key: str,
    config: BagTraining,
    on_step: Callable[[int, float], None],
) -> CrossValidation | None:
    """How policies taught by `fold_steps` foretell episodes that they were not taught with."""
    short = replace(config, steps=min(config.steps, config.fold_steps))

    def predict(taught: Samples, judged: Samples) -> NDArray[np.float64]:
        network, description, _ = _fit(taught, shown, camera_key, short, on_step)
        return _predict(network, description, judged, config.seed)

    return cross_validate(episodes, config.folds, config.horizon, predict)


@torch.no_grad()
def _predict(network: FlowTinyNetwork, description: FlowTinyConfig, samples: Samples, seed: int) -> NDArray[np.float64]:
    generator = torch.Generator().manual_seed(seed)
    states = (samples.states - np.float32(description.state_mean)) / np.float32(description.state_std)
    condition = network.encode(torch.from_numpy(samples.images), torch.from_numpy(states))
    rows = []
    for _ in range(NOISES):
        noise = torch.randn(samples.actions.shape, generator=generator)
        ends = noise + network.velocity(condition, noise, torch.zeros(noise.shape[:2]))  # one denoise step
        rows.append(ends.numpy() * np.float32(description.action_std) + np.float32(description.action_mean))
    return np.stack(rows)


def scale(description: FlowTinyConfig, trust: NDArray[np.float64]) -> FlowTinyConfig:
    """The same policy with offsets of each joint made smaller by `trust` [A]."""
    mean, std = (
        tuple(float(v) for v in np.array(x) * trust) for x in (description.action_mean, description.action_std)
    )
    return replace(description, action_mean=mean, action_std=std)


def _describe(data: Normalised, shown: Demonstrations, camera_key: str, config: BagTraining) -> FlowTinyConfig:
    def plain(values: np.ndarray) -> tuple[float, ...]:
        return tuple(float(value) for value in values)

    return FlowTinyConfig(
        state=tuple(Feature(name, "position", _unit(name)) for name in shown.names),
        action=tuple(Feature(name, "position", _unit(name), "relative") for name in shown.names),
        state_mean=plain(data.state_mean),
        state_std=plain(data.state_std),
        action_mean=plain(data.action_mean),
        action_std=plain(data.action_std),
        camera_key=camera_key,
        image_size=IMAGE_SIZE,
        horizon=config.horizon,
        dt_s=shown.dt_s,
        denoise_steps=config.denoise_steps,
        condition=config.condition,
        width=config.width,
        blocks=config.blocks,
        training={**asdict(config), "torch": torch.__version__},
    )


def _unit(name: str) -> str:
    return "m" if name in METRES else "1" if name in PLAIN else "rad"


def _write_from(bag: Bag, stamp_ns: int, path: Path) -> None:
    """The rest of the bag from an instant on, message by message."""
    path.unlink(missing_ok=True)
    with BagWriter(path) as writer:
        for message in bag.messages():
            if message.log_ns >= stamp_ns:
                writer.write(message.topic, message.type, message.log_ns, message.msg)
