"""A policy node as a process of its own, with a policy that turns the base of the simulated arm at 0.25 rad/s."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import phyai_adapters
from phyai_core.adapter import Adapter
from phyai_core.types import CameraSpec, Feature, Observation, PolicySpec
from phyai_ros.policy_node import main
from phyai_ros.sim.arm import CONTROL_DT_S, POLICY_JOINTS

HORIZON = 24
STEP_RAD = np.array([0.01, 0, 0, 0], np.float32)


class TurningPolicy(Adapter):
    """Goes on from the last command; one denoise step lands on the plan, whatever the noise."""

    def __init__(self) -> None:
        state = tuple(Feature(name, kind) for kind in ("position", "command") for name in POLICY_JOINTS)
        action = tuple(Feature(name) for name in POLICY_JOINTS)
        cameras = (CameraSpec("front", 64, 64),)
        self.spec = PolicySpec("turning", HORIZON, CONTROL_DT_S, cameras, state, action, 4, 1)

    @classmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> TurningPolicy:
        return cls()

    def preprocess(self, obs: Observation) -> dict[str, torch.Tensor]:
        plan = obs.state[4:] + np.arange(1, HORIZON + 1)[:, None] * STEP_RAD
        return {"plan": torch.from_numpy(plan.astype(np.float32))[None]}

    def encode_prefix(self, inputs):
        return inputs["plan"]

    def init_latents(self, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def denoise_step(self, prefix, latents, flow_time):
        return prefix - latents

    def postprocess(self, latents, obs):
        return latents.astype(np.float32)


if __name__ == "__main__":
    # By file name, because this module is __main__ here and not a member of a package.
    sys.modules["arm_policy"] = sys.modules["__main__"]
    phyai_adapters.ADAPTERS["turning"] = "arm_policy:TurningPolicy"
    sys.exit(main(autostart="autostart" in sys.argv))
