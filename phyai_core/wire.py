"""What crosses between a node and the process that owns the model: arrays by shared memory, the rest by a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phyai_core.packing import Field
from phyai_core.rtc import RtcTables
from phyai_core.shared_ring import Layout
from phyai_core.types import FloatArray, Observation, PolicySpec

IMAGE, CLOUD, TABLES, PAST = "image.", "cloud.", "tables.", "past."
SLOTS = 3  # blocks of each ring: nothing is written over what the other side may still be reading


@dataclass(frozen=True)
class Handles:
    """File descriptors that the child inherits: one end of the pipe and the shared memory."""

    pipe: int
    heartbeat: int  # one int64: the steady time in ns at which the child was last alive
    requests: int
    chunks: int


@dataclass(frozen=True)
class WarmUp:
    """To the child: prepare everything and infer `runs` times."""

    runs: int


@dataclass(frozen=True)
class Infer:
    """To the child: one inference. Its arrays lie in block `seq` of the requests; `layout` None: laid out as before."""

    seq: int
    layout: Layout | None
    stamp_ns: int
    prompt: str
    numbers: Mapping[str, int]  # those fields of the tables that are no arrays


@dataclass(frozen=True)
class Loaded:
    """From the child: the policy is there."""

    spec: PolicySpec


@dataclass(frozen=True)
class Progressed:
    """From the child, while it prepares."""

    done: int
    total: int


@dataclass(frozen=True)
class Warm:
    """From the child: ready; the seconds of each warm-up inference, and Engine.kernel_choices."""

    seconds: list[float]
    kernel_choices: str


@dataclass(frozen=True)
class Done:
    """From the child: latent and actions lie in block `seq` of the chunks."""

    seq: int
    stages_s: dict[str, float]


@dataclass(frozen=True)
class Failed:
    """From the child: it raised. `user_error` tells a ValueError, whose text is for the user, from a defect."""

    text: str
    user_error: bool


def request_arrays(obs: Observation, tables: RtcTables, noise: FloatArray) -> dict[str, NDArray]:
    """Every array of one request, by name."""
    past = {
        f"{PAST}{index}.{name}": array
        for index, before in enumerate(obs.history)
        for name, array in _observation_arrays(before).items()
    }
    own = {TABLES + name: value for name, value in vars(tables).items() if isinstance(value, np.ndarray)}
    return {**_observation_arrays(obs), **past, **own, "noise": noise}


def _observation_arrays(obs: Observation) -> dict[str, NDArray]:
    images = {IMAGE + key: image for key, image in obs.images.items()}
    images |= {CLOUD + key: cloud for key, cloud in obs.clouds.items()}
    return {**images, "state": obs.state, "last_command": obs.last_command, "epoch": np.array([obs.epoch])}


def request_numbers(tables: RtcTables) -> dict[str, int]:
    """What the arrays leave out of the tables."""
    return {name: value for name, value in vars(tables).items() if not isinstance(value, np.ndarray)}


def read_request(message: Infer, arrays: Mapping[str, NDArray]) -> tuple[Observation, RtcTables, FloatArray]:
    """The request in its block. What the child does not need (sources, stamps of the history) did not cross."""
    tables, history = _under(TABLES, arrays), []
    while past := _under(f"{PAST}{len(history)}.", arrays):
        history.append(_observation(past, 0, message.prompt))
    obs = replace(_observation(arrays, message.stamp_ns, message.prompt), history=tuple(history))
    return obs, RtcTables(**tables, **message.numbers), arrays["noise"]


def _observation(arrays: Mapping[str, NDArray], stamp_ns: int, prompt: str) -> Observation:
    images, epoch = _under(IMAGE, arrays), int(arrays["epoch"][0])
    clouds, command = _under(CLOUD, arrays), arrays["last_command"]
    return Observation(stamp_ns, images, arrays["state"], command, prompt, clouds=clouds, epoch=epoch)


def _under(prefix: str, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def chunk_layout(spec: PolicySpec) -> Layout:
    """What a block of the ring of chunks holds."""
    horizon, float32 = spec.action_horizon, np.dtype(np.float32)
    latent, actions = Field((horizon, spec.latent_dim), float32), Field((horizon, spec.action_dim), float32)
    return Layout({"latent": latent, "actions": actions})
