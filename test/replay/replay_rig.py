"""Replays of made bags with policies made by formula, through the same calls as the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import phyai_adapters
from phyai_core.adapter import Adapter
from phyai_core.types import CameraSpec, Feature, PolicySpec
from phyai_ros.assembly import load_policy
from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.replay_run import Replay, ReplayResult
from phyai_ros.replay.scenario import Scenario
from phyai_ros.replay.topics import NodeName
from replay.made_bags import NAMES, START_NS, MadeBag, position

HORIZON, DT_S = 24, 0.04
PARAMETERS = {
    "inference.adapter": "knowing",
    "inference.warmup_runs": 1,
    "cameras.keys": ["front"],
    "cameras.front.topic": "camera/front/image_raw",
    "rtc.execution_horizon": 6,
    "limits.max_velocity": [2.0],
    "limits.max_acceleration": [40.0],
    "start.max_step_rad": 0.2,
}


class KnowingPolicy(Adapter):
    """Foretells where the made arm goes, `late_s` behind and `off` beside it, with so much `noise`; raises at the n-th
    chunk when told to."""

    late_s, off, fails_at, noise = 0.0, 0.0, -1, 0.0

    def __init__(self) -> None:
        features = tuple(Feature(name) for name in NAMES)
        cameras = (CameraSpec("front", 8, 8),)
        self.spec = PolicySpec(
            "knowing", HORIZON, DT_S, cameras, features, features, 2, 1, rtc_modes=("none", "identity")
        )
        self._count = 0

    @classmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> KnowingPolicy:
        return cls()

    def preprocess(self, obs):
        if obs.stamp_ns:
            self._count += 1
            if self._count == self.fails_at:
                raise RuntimeError("out of ideas")
        now_s = (obs.stamp_ns - START_NS) * 1e-9 if obs.stamp_ns else 0.0
        times = now_s - self.late_s + DT_S * np.arange(1, HORIZON + 1)
        plan = np.array([position(t) for t in times]) + self.off
        return {"plan": torch.from_numpy(plan.astype(np.float32))[None]}

    def encode_prefix(self, inputs):
        return inputs["plan"]

    def init_latents(self, noise):
        self._shift = self.noise * noise[:, :1]
        return noise

    def denoise_step(self, prefix, latents, flow_time):
        return prefix + self._shift - latents

    def postprocess(self, latents, obs):
        return latents.astype(np.float32)

    def encode_actions(self, actions, obs=None):
        return np.asarray(actions, np.float32)


@contextmanager
def knowing_policy(late_s: float = 0.0, off: float = 0.0, fails_at: int = -1, noise: float = 0.0) -> Iterator[None]:
    """The adapter `knowing` exists while this lasts."""
    KnowingPolicy.late_s, KnowingPolicy.off, KnowingPolicy.fails_at = late_s, off, fails_at
    KnowingPolicy.noise = noise
    phyai_adapters.ADAPTERS["knowing"] = "replay.replay_rig:KnowingPolicy"
    try:
        yield
    finally:
        del phyai_adapters.ADAPTERS["knowing"]


def replay(tmp_path: Path, made: MadeBag, scenario: Scenario | None = None, **parameters) -> ReplayResult:
    """One replay of a made bag; parameters as group__name."""
    values = {**PARAMETERS, **{name.replace("__", "."): value for name, value in parameters.items()}}
    policy = load_policy(build_settings(values), log=lambda line: None)
    folder = tmp_path / "bag"
    with Bag(folder if folder.exists() else made.write(folder)) as bag:
        return Replay(bag, policy, NodeName()).run(scenario or Scenario())


def write_params(path: Path, **parameters) -> Path:
    """The same parameters as a file; JSON is YAML."""
    import json

    values = {**PARAMETERS, **{name.replace("__", "."): value for name, value in parameters.items()}}
    path.write_text(json.dumps({"/**": {"ros__parameters": values}}))
    return path
