"""Root mean square norm of rows, where no residual is added before it:

    out = x / rms(x) * (offset + weight),    rms(x) = sqrt(mean(x^2) + eps)

`offset` is 1 in the Gemma family, 0 in the Llama family. With a residual see add_rms_norm.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton

ELEMENTS = 2048  # of a tile; short rows, as those of single heads, share one


def rms_norm_reference(x: Tensor, weight: Tensor, out: Tensor, eps: float, offset: float) -> None:
    """x and out [R, D], weight [D]; computed in float32."""
    wide = x.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (offset + weight.float()))


@jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    eps,
    offset,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = offset + tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None] * weight[None, :]
    tl.store(out_ptr + place, normed.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm_triton(x: Tensor, weight: Tensor, out: Tensor, eps: float, offset: float) -> None:
    """Same contract as the reference, in one launch; x and out contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    per_program = max(1, ELEMENTS // block)
    _rms_norm_kernel[(triton.cdiv(rows, per_program),)](
        x, weight, out, rows, eps, offset, WIDTH=width, ROWS=per_program, BLOCK=block, num_warps=4
    )


RMS_NORM = Op("rms_norm", rms_norm_reference, rms_norm_triton)
