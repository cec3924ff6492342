"""Root mean square norm of rows, of any length and family, and the residual add before it where there is one:

    total = x + branch;    out = total / rms(total) * (offset + weight),    rms(x) = sqrt(mean(x^2) + eps)

`offset` is 1 in the Gemma family, 0 in the Llama family. add_rms_norm.py is the one for passes over buffers that stay
the same ones, with FP8 and early starts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton

ELEMENTS = 2048  # of a tile; short rows, as those of single heads, share one


def rms_norm_reference(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float,
    offset: float,
    branch: Tensor | None = None,
    total: Tensor | None = None,
) -> None:
    """x and out [R, D], weight [D]; branch and total [R, D] or neither. Sums are rounded, the norm is float32."""
    if branch is not None:
        x = torch.add(x, branch, out=total)
    wide = x.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (offset + weight.float()))


@jit
def _rms_norm_kernel(
    x_ptr,
    branch_ptr,
    weight_ptr,
    total_ptr,
    out_ptr,
    rows,
    eps,
    offset,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    if ADD:
        branch = tl.load(branch_ptr + place, mask=inside, other=0.0)
        x = (x.to(tl.float32) + branch.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + place, x, mask=inside)
    wide = x.to(tl.float32)
    weight = offset + tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)[:, None] * weight[None, :]
    tl.store(out_ptr + place, normed.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm_triton(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float,
    offset: float,
    branch: Tensor | None = None,
    total: Tensor | None = None,
) -> None:
    """Same contract as the reference, in one launch; everything contiguous."""
    rows, width = x.shape
    block, add = triton.next_power_of_2(width), branch is not None
    per_program = max(1, ELEMENTS // block)
    pointers = (x, branch if add else x, weight, total if add else out, out)
    _rms_norm_kernel[(triton.cdiv(rows, per_program),)](
        *pointers, rows, eps, offset, WIDTH=width, ROWS=per_program, BLOCK=block, ADD=add, num_warps=4
    )


RMS_NORM = Op("rms_norm", rms_norm_reference, rms_norm_triton)
