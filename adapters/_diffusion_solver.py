"""DDPM and DDIM as tables of coefficients, so that a sampler is a few products per step.

    clean = clip(p x + q out);   DDIM  x <- r clean + s noise_estimate;   DDPM  x <- r clean + s x + w z

Step t of T goes to t - T // N. Sources: arXiv 2006.11239 (DDPM), 2010.02502 (DDIM), huggingface/diffusers schedulers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SAMPLERS = ("DDPM", "DDIM")
PREDICTIONS = ("epsilon", "sample")
SCHEDULES = ("squaredcos_cap_v2", "linear")
MAX_BETA, COSINE_SHIFT, LEAST_VARIANCE = 0.999, 0.008, 1e-20


def signal_shares(config: Mapping[str, Any]) -> Tensor:
    """[T] float32: how much of the variance is signal after each step of training, called alpha bar."""
    steps = config["num_train_timesteps"]
    if config["beta_schedule"] == "linear":
        betas = torch.linspace(config["beta_start"], config["beta_end"], steps, dtype=torch.float32)
    else:
        share = [math.cos((i / steps + COSINE_SHIFT) / (1 + COSINE_SHIFT) * math.pi / 2) ** 2 for i in range(steps + 1)]
        betas = torch.tensor([min(1 - share[i + 1] / share[i], MAX_BETA) for i in range(steps)], dtype=torch.float32)
    return torch.cumprod(1.0 - betas, dim=0)


@dataclass(frozen=True)
class Solver:
    """One sampler with its number of steps N. `draws`: DDPM adds noise after every step but the last."""

    steps: Tensor  # int64 [N], descending
    shares: Tensor  # [N, 2] alpha bar at the step and at the one it goes to
    draws: bool
    predicts_clean: bool
    clip: float | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], count: int) -> Solver:
        """Of a lerobot config.json. Raises ValueError for more steps than training had."""
        trained = config["num_train_timesteps"]
        if not 1 <= count <= trained:
            raise ValueError(f"num_denoise_steps: {count} given; allowed are 1 to {trained}, the steps of training")
        ratio = trained // count
        steps = torch.arange(count - 1, -1, -1) * ratio
        table = torch.cat((signal_shares(config), torch.ones(1)))  # index -1: clean
        shares = torch.stack((table[steps], table[(steps - ratio).clamp(min=-1)]), dim=1)
        clip = config["clip_sample_range"] if config["clip_sample"] else None
        draws = config["noise_scheduler_type"] == "DDPM"
        return cls(steps, shares, draws, config["prediction_type"] == "sample", clip)

    @property
    def noises(self) -> int:
        """Blocks of noise one sample takes: its start, and for DDPM one for each step but the last."""
        return len(self.steps) if self.draws else 1

    def sample(self, network: Callable[[Tensor, int], Tensor], noise: Tensor) -> Tensor:
        """noise [B, noises * T, A], the start first -> sample [B, T, A]. `network(x, step)` is its output [B, T, A]."""
        blocks = noise.unflatten(1, (self.noises, -1))  # [B, noises, T, A]
        x = blocks[:, 0]
        for index, step in enumerate(self.steps.tolist()):
            share, target = self.shares[index].unbind()
            clean, estimate = self._split(x, network(x, step), share)
            if not self.draws:
                x = target.sqrt() * clean + (1.0 - target).sqrt() * estimate
                continue
            kept = share / target
            x = target.sqrt() * (1.0 - kept) / (1.0 - share) * clean + kept.sqrt() * (1.0 - target) / (1.0 - share) * x
            if index + 1 < len(self.steps):
                variance = ((1.0 - target) / (1.0 - share) * (1.0 - kept)).clamp(min=LEAST_VARIANCE)
                x = x + variance.sqrt() * blocks[:, index + 1]
        return x

    def _split(self, x: Tensor, output: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """The clean sample, clipped, and the noise in x that the unclipped one implies."""
        if self.predicts_clean:
            clean, estimate = output, (x - share.sqrt() * output) / (1.0 - share).sqrt()
        else:
            clean, estimate = (x - (1.0 - share).sqrt() * output) / share.sqrt(), output
        return (clean if self.clip is None else clean.clamp(-self.clip, self.clip)), estimate
