"""`flow_tiny`: the small flow-matching policy of the built-in arm: one camera, 12 state values, 32 rows of 4 joints.

Image and state become one condition vector (the prefix). A residual MLP, modulated by condition and flow time, maps
the whole noisy chunk to its velocity. Every row also carries its own flow time: rows may be cleaner than others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig, read_checkpoint
from phyai_core.adapter import Adapter
from phyai_core.types import FloatArray, Observation, PolicySpec

SHIPPED_CHECKPOINT = Path(__file__).parent / "weights"
SHIPPED_RTC_CHECKPOINT = SHIPPED_CHECKPOINT / "rtc"


class _ResidualBlock(nn.Module):
    """x + gate * MLP(scale * norm(x) + shift), the three coming from the condition; starts as the identity."""

    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(condition, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift, gate = self.modulation(condition).chunk(3, dim=-1)
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)


class FlowTinyNetwork(nn.Module):
    """Encoder and velocity field, all in normalised units."""

    def __init__(self, config: FlowTinyConfig) -> None:
        super().__init__()
        horizon, dim, width, condition = config.horizon, config.action_dim, config.width, config.condition
        self.vision = nn.Sequential(
            nn.Conv2d(3, 32, 6, stride=4, padding=1),
            nn.SiLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(64 * (config.image_size // 16) ** 2, 256),
            nn.SiLU(),
        )
        self.proprioception = nn.Sequential(nn.Linear(config.state_dim, 128), nn.SiLU(), nn.Linear(128, 128))
        self.fusion = nn.Sequential(nn.Linear(256 + 128, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.time = nn.Sequential(nn.Linear(2 * 32, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.read_chunk = nn.Linear(horizon * (dim + 1), width)
        self.blocks = nn.ModuleList(_ResidualBlock(width, condition) for _ in range(config.blocks))
        self.write_velocity = nn.Linear(width, horizon * dim)
        frequencies = torch.exp(torch.linspace(0.0, math.log(200.0), 32))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def encode(self, image: Tensor, state: Tensor) -> Tensor:
        """Image uint8 [B, h, w, 3] or float in 0..255, normalised state [B, S] -> condition [B, C]."""
        pixels = image.permute(0, 3, 1, 2).float() / 127.5 - 1.0
        return self.fusion(torch.cat([self.vision(pixels), self.proprioception(state)], dim=-1))

    def velocity(self, condition: Tensor, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity [B, H, A] of `latents` [B, H, A] at per-row `flow_time` [B, H], given `condition` [B, C].

        The last row's time modulates the blocks: it is the one row that no mode ever fixes in advance.
        """
        phase = flow_time[:, -1:] * self.frequencies
        modulation = F.silu(condition + self.time(torch.cat([phase.sin(), phase.cos()], dim=-1)))
        hidden = self.read_chunk(torch.cat([latents, flow_time[..., None]], dim=-1).flatten(1))
        for block in self.blocks:
            hidden = block(hidden, modulation)
        return self.write_velocity(hidden).view_as(latents)


class FlowTiny(Adapter):
    """Adapter of FlowTinyNetwork; the latent is the normalised action itself (A' = A)."""

    shipped = SHIPPED_CHECKPOINT

    def __init__(self, config: FlowTinyConfig, network: FlowTinyNetwork, device: torch.device) -> None:
        self.config = config
        self.spec: PolicySpec = config.policy_spec()
        self.network = network.to(device).eval()
        self._state_mean, self._state_std = np.float32(config.state_mean), np.float32(config.state_std)
        self._action_mean, self._action_std = np.float32(config.action_mean), np.float32(config.action_std)

    @classmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> FlowTiny:
        """Read flow_tiny.json and flow_tiny.safetensors from the folder `checkpoint` (None: the shipped weights)."""
        config, weights = read_checkpoint(checkpoint or cls.shipped, lambda c: FlowTinyNetwork(c).state_dict())
        network = FlowTinyNetwork(config)
        network.load_state_dict(weights)
        return cls(config, network.requires_grad_(False), device)

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> {"image": uint8 [1, 64, 64, 3], "state": float32 [1, S] normalised}."""
        (camera,) = self.spec.cameras
        if set(obs.images) != {camera.key}:
            raise ValueError(
                f"images: got the camera keys {sorted(obs.images)}; {self.spec.name} needs [{camera.key!r}]."
            )
        image = obs.images[camera.key]
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise ValueError(
                f"images[{camera.key!r}]: got {image.dtype} with shape {image.shape}; "
                f"{self.spec.name} needs uint8 RGB with shape [height, width, 3]."
            )
        if image.shape[:2] != (camera.height, camera.width):
            image = cv2.resize(image, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
        if np.shape(obs.state) != (self.spec.state_dim,):
            names = ", ".join(f"{feature.name} {feature.kind}" for feature in self.spec.state)
            raise ValueError(
                f"state: got shape {np.shape(obs.state)}; {self.spec.name} needs {self.spec.state_dim} values: {names}."
            )
        state = (np.asarray(obs.state, np.float32) - self._state_mean) / self._state_std
        return {"image": torch.from_numpy(np.ascontiguousarray(image))[None], "state": torch.from_numpy(state)[None]}

    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Condition vector [B, C]."""
        return self.network.encode(inputs["image"], inputs["state"])

    def init_latents(self, noise: Tensor) -> Tensor:
        """The noise itself."""
        return noise.float()

    def denoise_step(self, prefix: Tensor, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity [B, H, A]."""
        return self.network.velocity(prefix, latents, flow_time)

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Normalised actions [H, A] -> joint targets [H, A] in rad."""
        return latents * self._action_std + self._action_mean

    def encode_actions(self, actions: FloatArray, obs: Observation | None = None) -> FloatArray:
        """Joint targets [H, A] in rad -> normalised actions [H, A]: the inverse of `postprocess`, whatever is seen."""
        return (np.asarray(actions, np.float32) - self._action_mean) / self._action_std


class FlowTinyRtc(FlowTiny):
    """The same policy, fine-tuned to continue a prefix: for rtc.mode trained (training-time real-time chunking)."""

    shipped = SHIPPED_RTC_CHECKPOINT
