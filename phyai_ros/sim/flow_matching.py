"""Conditional flow matching: how the built-in policy learns from samples.

With noise e, action a and flow time t in [0, 1], the network learns the velocity a - e at x = (1 - t) e + t a. For
training-time real-time chunking (arXiv 2512.05964) the first rows are given clean, at flow time 1, and carry no loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from phyai_ros.sim.dataset import Samples


@dataclass(frozen=True)
class Schedule:
    """How the weights are optimised."""

    steps: int = 2000
    batch: int = 256
    noise_draws: int = 2  # noises per image of the batch; the encoder is the dear part
    learning_rate: float = 1.5e-3
    warm_up_steps: int = 200
    ema_decay: float = 0.999
    state_noise: float = 0.02  # in normalised units
    shift_px: int = 1
    brightness: float = 0.1
    max_prefix_rows: int = 0  # so many rows at most are given clean, a number drawn evenly for each sample


def fit(network: nn.Module, averaged: nn.Module, data: Normalised, schedule: Schedule, seed: int) -> Iterator[float]:
    """Optimise `network` in place, and let `averaged` follow it: that is the one to keep. Yields the loss of each step.

    The sequence is fixed by the weights at the start and `seed`, on a given machine.
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=schedule.learning_rate, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _learning_rate_factor(step, schedule))
    network.train()
    for step in range(schedule.steps):
        loss = flow_loss(network, data.draw(schedule, generator), schedule, generator)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        scheduler.step()
        _average(averaged, network, min(schedule.ema_decay, (step + 1) / (step + 10)))
        yield loss.item()


def flow_loss(network: nn.Module, batch: Batch, schedule: Schedule, generator: torch.Generator) -> Tensor:
    """Mean squared velocity error over free rows; each image is encoded once and used with several noises and times."""
    condition = network.encode(batch.images, batch.states).repeat(schedule.noise_draws, 1)
    actions = batch.actions.repeat(schedule.noise_draws, 1, 1)  # [B, H, A]
    noise = torch.randn(actions.shape, generator=generator)
    flow_time = torch.rand(len(actions), generator=generator)
    # Without a prefix nothing is drawn for it, so that a seed means the same weights as ever.
    clean = torch.zeros(len(actions), dtype=torch.int64)
    if schedule.max_prefix_rows:
        clean = torch.randint(0, schedule.max_prefix_rows + 1, (len(actions),), generator=generator)
    latents, flow_times, free = mix(actions, noise, flow_time, clean)
    error = (network.velocity(condition, latents, flow_times) - (actions - noise)).square().mean(-1)  # [B, H]
    return (error * free).sum() / free.sum()


def mix(actions: Tensor, noise: Tensor, flow_time: Tensor, clean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [B, H, A], flow times [B, H] and whether a row is free [B, H], for `flow_time` [B], `clean` rows [B]."""
    free = torch.arange(actions.shape[1]) >= clean[:, None]
    flow_times = torch.where(free, flow_time[:, None], 1.0)
    return torch.where(free[..., None], torch.lerp(noise, actions, flow_times[..., None]), actions), flow_times, free


@dataclass(frozen=True)
class Batch:
    """Images float [B, h, w, 3] in 0..255, states [B, S] and actions [B, H, A] normalised."""

    images: Tensor
    states: Tensor
    actions: Tensor


class Normalised:
    """Samples as tensors, states and actions shifted and scaled to mean 0 and deviation 1."""

    def __init__(self, samples: Samples) -> None:
        self.state_mean, self.state_std = _moments(samples.states)
        self.action_mean, self.action_std = _moments(samples.actions.reshape(-1, samples.actions.shape[-1]))
        self.images = torch.from_numpy(samples.images)
        self.states = torch.from_numpy((samples.states - self.state_mean) / self.state_std)
        self.actions = torch.from_numpy((samples.actions - self.action_mean) / self.action_std)

    def draw(self, schedule: Schedule, generator: torch.Generator) -> Batch:
        """A random batch, with images shifted and made brighter or darker, and states jittered."""
        picked = torch.randint(len(self.states), (schedule.batch,), generator=generator)
        images = self.images[picked].float()
        reach = schedule.shift_px
        down, right = torch.randint(-reach, reach + 1, (2,), generator=generator).tolist()
        gain = 1.0 + schedule.brightness * (2.0 * torch.rand(len(picked), 1, 1, 1, generator=generator) - 1.0)
        images = torch.roll(images, (down, right), dims=(1, 2)) * gain
        states = self.states[picked]
        states = states + schedule.state_noise * torch.randn(states.shape, generator=generator)
        return Batch(images, states, self.actions[picked])


def _moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column, float32."""
    return rows.mean(0, dtype=np.float64).astype(np.float32), (rows.std(0, dtype=np.float64) + 1e-3).astype(np.float32)


def _learning_rate_factor(step: int, schedule: Schedule) -> float:
    """Linear warm-up times half a cosine."""
    warm_up = min(1.0, (step + 1) / schedule.warm_up_steps)
    return warm_up * 0.5 * (1.0 + math.cos(math.pi * step / schedule.steps)) + 1e-3


@torch.no_grad()
def _average(averaged: nn.Module, network: nn.Module, decay: float) -> None:
    for mean, value in zip(averaged.parameters(), network.parameters(), strict=True):
        mean.lerp_(value, 1.0 - decay)
