"""Root mean square norms of the Gemma family, computed in float32.

plain     n = x / rms(x) * (1 + weight)
scaled    n = x / rms(x) * weight, as in the Llama family
adaptive  n = x / rms(x) * (1 + scale) + shift, and a gate for the residual; scale, shift, gate depend on flow time
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phyai_core.layers.fusing import fuses
from phyai_kernels.rms_norm import RMS_NORM

EPS = 1e-6


def normalise_rms(x: Tensor, eps: float = EPS) -> Tensor:
    """x [..., D] of any float type -> float32 with root mean square 1 over D."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def weigh_rms(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """x [..., D] / rms(x) * (offset + weight [D]), in the type of x; computed in float32."""
    if not fuses(RMS_NORM, x):
        return (normalise_rms(x, eps) * (offset + weight)).to(x.dtype)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    RMS_NORM.triton(rows, weight, out, eps, offset)
    return out.view(x.shape)


def add_and_weigh_rms(x: Tensor, branch: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """x + branch, and weigh_rms of it."""
    if not fuses(RMS_NORM, x):
        x = x + branch
        return x, weigh_rms(x, weight, eps, offset)
    rows, more = (part.reshape(-1, x.shape[-1]).contiguous() for part in (x, branch))
    total, out = torch.empty_like(rows), torch.empty_like(rows)
    RMS_NORM.triton(rows, weight, out, eps, offset, more, total)
    return total.view(x.shape), out.view(x.shape)


class _WeighedNorm(nn.Module):
    """x / rms(x) * (offset + weight). Its weight stays float32."""

    offset: float

    def __init__(self, width: int, eps: float = EPS):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.float32))

    def add(self, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """[..., D] each -> (x + branch, normalised)."""
        return add_and_weigh_rms(x, branch, self.weight, self.eps, self.offset)


class RMSNorm(_WeighedNorm):
    """The plain norm."""

    offset = 1.0

    def forward(self, x: Tensor, modulation: None = None) -> tuple[Tensor, None]:
        """[..., D] -> (normalised [..., D], no gate)."""
        assert modulation is None
        return weigh_rms(x, self.weight, self.eps, self.offset), None


class ScaledRMSNorm(_WeighedNorm):
    """The norm of the Llama family."""

    offset = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return weigh_rms(x, self.weight, self.eps, self.offset)


class AdaRMSNorm(nn.Module):
    """The adaptive norm. Without weights: the modulation [..., 3 D] holds scale, shift and gate in this order."""

    def forward(self, x: Tensor, modulation: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., D], modulation [..., 3 D] -> (normalised [..., D], gate [..., D])."""
        scale, shift, gate = modulation.float().chunk(3, dim=-1)
        return (normalise_rms(x) * (1.0 + scale) + shift).to(x.dtype), gate.to(x.dtype)


def add_residual(x: Tensor, branch: Tensor, gate: Tensor | None) -> Tensor:
    """x + branch, or x + branch * gate behind an adaptive norm."""
    return x + branch if gate is None else x + branch * gate
