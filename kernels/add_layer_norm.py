"""Bias, residual add and LayerNorm in one pass over a row, for towers whose linears have biases:

x <- x + branch + bias;    out = (x - mean(x)) / std(x) * weight + shift
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import layer_norm

from phyai_kernels.op import Op, jit, tl, triton


def add_layer_norm_reference(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    shift: Tensor | None,
    out: Tensor,
    eps: float = 1e-6,
) -> None:
    """x, branch [R, D] of one float type (x is updated), bias, weight, shift [D], out [R, D].

    Without weight and shift they are 1 and 0.
    """
    wide = x.float()
    if branch is not None:
        wide = wide + branch.float() + bias.float()
        x.copy_(wide)
        wide = x.float()
    affine = (None, None) if weight is None else (weight.float(), shift.float())
    out.copy_(layer_norm(wide, wide.shape[-1:], *affine, eps))


@jit
def _add_layer_norm_kernel(
    x_ptr,
    branch_ptr,
    bias_ptr,
    weight_ptr,
    shift_ptr,
    out_ptr,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    AFFINE: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = row * WIDTH + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0)
    if ADD:
        bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
        branch = tl.load(branch_ptr + place, mask=inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) + branch + bias).to(x.dtype)
        tl.store(x_ptr + place, x, mask=inside)
    wide = x.to(tl.float32)
    centred = tl.where(inside, wide - tl.sum(wide) / WIDTH, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / WIDTH + eps)
    if AFFINE:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        normed = normed * weight + tl.load(shift_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, normed.to(out_ptr.dtype.element_ty), mask=inside)


def add_layer_norm_triton(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    shift: Tensor | None,
    out: Tensor,
    eps: float = 1e-6,
) -> None:
    """Same contract as the reference, in one launch."""
    rows, width = x.shape
    absent, affine = branch is None, weight is not None
    _add_layer_norm_kernel[(rows,)](
        x,
        x if absent else branch,
        x if absent else bias,
        weight if affine else x,
        shift if affine else x,
        out,
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        ADD=not absent,
        AFFINE=affine,
    )


ADD_LAYER_NORM = Op("add_layer_norm", add_layer_norm_reference, add_layer_norm_triton)
