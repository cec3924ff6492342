"""A two-joint policy for node tests: it plans a slow sine from where the arm is, and misbehaves on request."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import torch

from phyai_core.adapter import Adapter
from phyai_core.types import CameraSpec, Feature, Observation, PolicySpec

HORIZON, DT_S = 24, 0.04
JOINTS = ("shoulder", "elbow")


class Misbehaviour:
    """What the policy does wrong from now on; shared by test and node. One instance per test."""

    def __init__(self) -> None:
        self.nan = False
        self.error: Exception | None = None
        self.load_error: str = ""
        self.go_on = threading.Event()  # cleared: inference hangs
        self.go_on.set()
        self.offset = 0.0  # added to every action


class FakePolicy(Adapter):
    """One denoise step that lands on the plan made in `preprocess`, whatever the noise."""

    misbehaviour = Misbehaviour()

    def __init__(self) -> None:
        state = tuple(Feature(name, kind) for kind in ("position", "command") for name in JOINTS)
        action = tuple(Feature(name) for name in JOINTS)
        cameras = (CameraSpec("front", 8, 8),)
        self.spec = PolicySpec("fake", HORIZON, DT_S, cameras, state, action, 2, 1, rtc_modes=("none", "identity"))

    @classmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> FakePolicy:
        if cls.misbehaviour.load_error:
            raise ValueError(cls.misbehaviour.load_error)
        return cls()

    def preprocess(self, obs: Observation) -> dict[str, torch.Tensor]:
        wrong = self.misbehaviour
        if not wrong.go_on.wait(10.0):
            raise TimeoutError("the test never let go")
        if wrong.error is not None:
            raise wrong.error
        start = obs.state[2:4] if obs.stamp_ns else np.zeros(2, np.float32)
        steps = np.arange(1, HORIZON + 1)[:, None] * 0.002
        plan = start + steps + wrong.offset
        if wrong.nan:
            plan[5, 1] = np.nan
        return {"plan": torch.from_numpy(plan.astype(np.float32))[None]}

    def encode_prefix(self, inputs):
        return inputs["plan"]

    def init_latents(self, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def denoise_step(self, prefix, latents, flow_time):
        return prefix - latents

    def postprocess(self, latents, obs):
        return latents.astype(np.float32)
