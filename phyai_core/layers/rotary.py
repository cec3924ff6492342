"""Rotary position embedding, half-split: element i is paired with element i + K/2, angle = position * theta^(-2i/K).

Angles, sines and the rotation are float32. `inv_freq="bf16_roundtrip"` rounds the frequencies to bfloat16 first, as
checkpoints do that were run after module.to(bfloat16); with it long prefixes reproduce such reference outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from phyai_core.layers.fusing import fuses
from phyai_kernels.rotate import ROTATE

THETA = 1e4
INV_FREQ = ("float32", "bf16_roundtrip")


class Rotary(NamedTuple):
    """Cosines and sines of the positions at hand, each [B, T, 1, K/2] float32."""

    cos: Tensor
    sin: Tensor


class RotaryTable(nn.Module):
    """Cosines and sines of positions 0 .. max_positions-1, computed once."""

    def __init__(self, max_positions: int, head_dim: int, device: torch.device, inv_freq: str = "float32"):
        super().__init__()
        assert inv_freq in INV_FREQ, inv_freq
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequency = 1.0 / THETA**exponent
        if inv_freq == "bf16_roundtrip":
            frequency = frequency.bfloat16().float()
        angle = torch.arange(max_positions).float()[:, None] * frequency  # [max_positions, K/2]
        self.register_buffer("cos", angle.cos().to(device), persistent=False)
        self.register_buffer("sin", angle.sin().to(device), persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """positions int64 [B, T] -> Rotary."""
        return Rotary(self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2))


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """x [B, T, N, K] -> x turned by the angle of its position, in the type of x.

    Where the tables are for fewer than K elements, those behind them pass unchanged.
    """
    if fuses(ROTATE, x):
        cos, sin = (part.expand(len(x), -1, -1, -1).contiguous() for part in rotary)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        ROTATE.triton(x, cos, sin, out)
        return out
    half = rotary.cos.shape[-1]
    first, second, rest = x.float().split((half, half, x.shape[-1] - 2 * half), dim=-1)
    turned = (first * rotary.cos - second * rotary.sin, second * rotary.cos + first * rotary.sin, rest)
    return torch.cat(turned, dim=-1).to(x.dtype)
