"""A tiny flow policy with a field that can be written down: v = M x + a tau + b, M mixing rows as attention would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.types import CameraSpec, Feature, FloatArray, Observation, PolicySpec


def make_spec(horizon: int = 8, latent_dim: int = 3, steps: int = 5, **changes: Any) -> PolicySpec:
    """A policy of two joints; latent_dim - 2 model dims are padding."""
    fields = {
        "name": "linear",
        "action_horizon": horizon,
        "dt_s": 0.04,
        "cameras": (CameraSpec("front", 4, 6),),
        "state": (Feature("yaw"), Feature("elbow")),
        "action": (Feature("yaw"), Feature("elbow")),
        "latent_dim": latent_dim,
        "num_denoise_steps": steps,
        "rtc_modes": ("none", "identity", "hard", "ramp"),
    }
    return PolicySpec(**{**fields, **changes})


class LinearFlow(Adapter):
    """Robot units are ten times model units; the prefix is the state, added to the first model dims."""

    def __init__(self, spec: PolicySpec, mix: FloatArray | None = None, drift: FloatArray | None = None) -> None:
        self.spec = spec
        horizon, width = spec.action_horizon, spec.latent_dim
        self.mix = torch.as_tensor(np.zeros((horizon, horizon)) if mix is None else mix, dtype=torch.float32)
        self.drift = torch.as_tensor(np.zeros(width) if drift is None else drift, dtype=torch.float32)
        self.offset = torch.zeros(horizon, width)
        self.flow_times: list[float] = []

    @classmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> LinearFlow:
        return cls(make_spec())

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        if set(obs.images) != {camera.key for camera in self.spec.cameras}:
            raise ValueError(f"cameras {sorted(obs.images)}: allowed are those of the spec.")
        return {"state": torch.from_numpy(obs.state)[None]}

    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Tensor:
        pad = self.spec.latent_dim - self.spec.state_dim
        return torch.nn.functional.pad(inputs["state"], (0, pad))[:, None]

    def init_latents(self, noise: Tensor) -> Tensor:
        return noise

    def denoise_step(self, prefix: Any, latents: Tensor, flow_time: Tensor) -> Tensor:
        self.flow_times.append(float(flow_time[0, 0]))
        return self.mix @ latents + self.drift * flow_time[..., None] + self.offset + prefix

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        return 10.0 * latents[:, : self.spec.action_dim]
