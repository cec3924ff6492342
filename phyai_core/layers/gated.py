"""The activation of gated feed-forward layers whose gate and up are one product."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from phyai_core.layers.fusing import fuses
from phyai_kernels.swiglu import SWIGLU


def swiglu(gate_up: Tensor) -> Tensor:
    """[..., 2 F] with the gates in front -> silu(gate) * up, [..., F]."""
    if not fuses(SWIGLU, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up
    out = gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)
    SWIGLU.triton(gate_up.flatten(0, -2), out.flatten(0, -2))
    return out
