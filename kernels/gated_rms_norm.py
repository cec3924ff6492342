"""Norm of each head's output, gated, as in gated delta networks: out = x / rms(x) * weight * silu(gate)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from phyai_kernels.op import Op, jit, tl, triton
from phyai_kernels.skinny import EPS

ROWS = 4


def gated_rms_norm_reference(x: Tensor, gate: Tensor, weight: Tensor, out: Tensor) -> None:
    """x, gate, out [R, K], weight [K]; R counts tokens times heads. Computed in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    out.copy_(normed * weight.float() * silu(gate.float()))


@jit
def _gated_rms_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    rows,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 1) / WIDTH + EPS)[:, None] * weight[None, :]
    tl.store(out_ptr + place, (normed * gate * tl.sigmoid(gate)).to(out_ptr.dtype.element_ty), mask=inside)


def gated_rms_norm_triton(x: Tensor, gate: Tensor, weight: Tensor, out: Tensor) -> None:
    """Same contract as the reference, in one launch."""
    rows, width = x.shape
    _gated_rms_norm_kernel[(triton.cdiv(rows, ROWS),)](
        x, gate, weight, out, rows, WIDTH=width, EPS=EPS, ROWS=ROWS, BLOCK=triton.next_power_of_2(width), num_warps=4
    )


GATED_RMS_NORM = Op("gated_rms_norm", gated_rms_norm_reference, gated_rms_norm_triton)
