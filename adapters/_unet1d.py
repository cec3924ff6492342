"""The denoiser of Diffusion Policy: a U-Net over the rows of a chunk, steered by step and observation in every block.

    block  h = conv(mish(group_norm(conv(x)))) with h * scale(c) + bias(c) in between, and a shortcut
    c = [step embedding ; observation]

Names of members are those of the files. C channels, T rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class UnetSizes:
    """Sizes of the network; the number of rows must be a multiple of 2 ** (len(channels) - 1)."""

    action_dim: int
    channels: tuple[int, ...]  # per level, the finest first
    kernel: int
    groups: int
    step_width: int
    observation_width: int


class StepFeatures(nn.Module):
    """Sines, then cosines, of the step at frequencies from 1 to 1e-4."""

    def __init__(self, width: int):
        super().__init__()
        self.half = width // 2

    def forward(self, step: Tensor) -> Tensor:
        """step [B] -> [B, width]."""
        index = torch.arange(self.half, device=step.device)
        angle = step[:, None] * torch.exp(index * -(math.log(1e4) / (self.half - 1)))
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class ConvBlock(nn.Module):
    """Convolution, group norm, Mish."""

    def __init__(self, inputs: int, outputs: int, sizes: UnetSizes):
        super().__init__()
        convolution = nn.Conv1d(inputs, outputs, sizes.kernel, padding=sizes.kernel // 2)
        self.block = nn.Sequential(convolution, nn.GroupNorm(sizes.groups, outputs), nn.Mish())

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C', T]."""
        return self.block(x)


class ResidualBlock(nn.Module):
    """Two convolutions; between them the condition scales and shifts every channel."""

    def __init__(self, inputs: int, outputs: int, sizes: UnetSizes):
        super().__init__()
        self.conv1, self.conv2 = ConvBlock(inputs, outputs, sizes), ConvBlock(outputs, outputs, sizes)
        width = sizes.step_width + sizes.observation_width
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(width, 2 * outputs))
        self.residual_conv = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x [B, C, T], condition [B, W] -> [B, C', T]."""
        scale, bias = self.cond_encoder(condition)[..., None].chunk(2, dim=1)
        return self.conv2(self.conv1(x) * scale + bias) + self.residual_conv(x)


def _level(inputs: int, outputs: int, sizes: UnetSizes, resize: nn.Module | None = None) -> nn.ModuleList:
    blocks = [ResidualBlock(inputs, outputs, sizes), ResidualBlock(outputs, outputs, sizes)]
    return nn.ModuleList([*blocks, nn.Identity() if resize is None else resize])


class Unet(nn.Module):
    """Noisy rows, step and observation -> what the scheduler takes as the network's output."""

    def __init__(self, sizes: UnetSizes):
        super().__init__()
        widths, step = sizes.channels, sizes.step_width
        self.diffusion_step_encoder = nn.Sequential(
            StepFeatures(step), nn.Linear(step, 4 * step), nn.Mish(), nn.Linear(4 * step, step)
        )
        pairs = list(zip((sizes.action_dim, *widths), widths, strict=False))
        down = [nn.Conv1d(width, width, 3, stride=2, padding=1) for width in widths[:-1]]
        up = [nn.ConvTranspose1d(width, width, 4, stride=2, padding=1) for width in widths[-2::-1]]
        self.down_modules = nn.ModuleList(
            _level(*pair, sizes, resize) for pair, resize in zip(pairs, [*down, None], strict=True)
        )
        self.mid_modules = nn.ModuleList(ResidualBlock(widths[-1], widths[-1], sizes) for _ in range(2))
        self.up_modules = nn.ModuleList(
            _level(2 * outer, inner, sizes, resize) for (inner, outer), resize in zip(pairs[:0:-1], up, strict=True)
        )
        self.final_conv = nn.Sequential(
            ConvBlock(widths[0], widths[0], sizes), nn.Conv1d(widths[0], sizes.action_dim, 1)
        )

    def forward(self, x: Tensor, step: Tensor, observation: Tensor) -> Tensor:
        """x [B, T, A], step [B], observation [B, W] -> [B, T, A]."""
        condition = torch.cat((self.diffusion_step_encoder(step), observation), dim=-1)
        x, kept = x.transpose(1, 2), []
        for first, second, resize in self.down_modules:
            x = second(first(x, condition), condition)
            kept.append(x)
            x = resize(x)
        for block in self.mid_modules:
            x = block(x, condition)
        for first, second, resize in self.up_modules:
            x = torch.cat((x, kept.pop()), dim=1)
            x = resize(second(first(x, condition), condition))
        return self.final_conv(x).transpose(1, 2)
