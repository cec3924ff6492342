"""Residual add and the norm behind it in one pass over a row:

    x <- x + branch;    out = x / rms(x) * (1 + weight),    rms(x) = sqrt(mean(x^2) + eps)

With `scales`, out is FP8 (e4m3) with one scale per row: the operand of the next FP8 product (see quantize_rows.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton
from phyai_kernels.quantize_rows import FP8_MAX, quantize_rows_reference
from phyai_kernels.skinny import EPS


def add_rms_norm_reference(
    x: Tensor, branch: Tensor | None, weight: Tensor, out: Tensor, scales: Tensor | None = None
) -> None:
    """x, branch [R, D] of one float type (x is updated), weight [D] float32, out [R, D]; scales [R] float32."""
    if branch is not None:
        x += branch
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * (1.0 + weight)
    if scales is None:
        out.copy_(normed)
    else:
        quantize_rows_reference(normed, out, scales)


@jit
def _add_rms_norm_kernel(
    x_ptr,
    branch_ptr,
    weight_ptr,
    out_ptr,
    scales_ptr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    FP8_MAX: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    place = row * WIDTH + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    if ADD:
        x = (x.to(tl.float32) + tl.load(branch_ptr + place, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(x_ptr + place, x, mask=inside)
    wide = x.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide) / WIDTH + EPS) * (1.0 + weight)
    if FP8_MAX > 0:
        largest = tl.maximum(tl.max(tl.abs(normed)), 1e-12)
        tl.store(scales_ptr + row, largest / FP8_MAX)
        normed = normed * (FP8_MAX / largest)
    tl.store(out_ptr + place, normed.to(out_ptr.dtype.element_ty), mask=inside)


def add_rms_norm_triton(
    x: Tensor, branch: Tensor | None, weight: Tensor, out: Tensor, scales: Tensor | None = None
) -> None:
    """Same contract as the reference, in one launch."""
    rows, width = x.shape
    _add_rms_norm_kernel[(rows,)](
        x,
        branch if branch is not None else x,
        weight,
        out,
        scales if scales is not None else weight,
        WIDTH=width,
        EPS=EPS,
        BLOCK=triton.next_power_of_2(width),
        ADD=branch is not None,
        FP8_MAX=FP8_MAX if scales is not None else 0.0,
        num_warps=4 if width <= 2048 else 8,
    )


ADD_RMS_NORM = Op("add_rms_norm", add_rms_norm_reference, add_rms_norm_triton)
