"""Rotary embedding of heads, half-split: element i is paired with element i + r / 2 of the first r elements.

    out_i = x_i cos - x_j sin,    out_j = x_j cos + x_i sin,    j = i + r / 2;    elements from r on pass through

Heads may lie in a wider row, as queries do behind a joint projection: x is read with its strides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """x and out [B, T, N, K], cos and sin [B, T, 1, r / 2] float32, r up to K."""
    half = cos.shape[-1]
    first, second, rest = x.float().split((half, half, x.shape[-1] - 2 * half), dim=-1)
    out.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1))


@jit
def _rotate_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    tokens,
    robot_stride,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.arange(0, HEAD_BLOCK)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (head < HEADS) & (pair < HALF)
    source = x_ptr + (row // tokens) * robot_stride + (row % tokens) * token_stride + head * head_stride
    target = out_ptr + (row * HEADS + head) * WIDTH
    cos = tl.load(cos_ptr + row * HALF + pair, mask=pair < HALF, other=0.0)
    sin = tl.load(sin_ptr + row * HALF + pair, mask=pair < HALF, other=0.0)
    first = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + pair, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + pair, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + HALF + pair, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=inside)
    for start in tl.static_range(2 * HALF, WIDTH, BLOCK):
        rest = start + pair
        passing = (head < HEADS) & (rest < WIDTH)
        tl.store(target + rest, tl.load(source + rest, mask=passing, other=0.0), mask=passing)


def rotate_triton(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Same contract as the reference, in one launch; elements of a head side by side, cos, sin and out contiguous."""
    batch, tokens, heads, width = x.shape
    half = cos.shape[-1]
    _rotate_kernel[(batch * tokens,)](
        x,
        cos,
        sin,
        out,
        tokens,
        *x.stride()[:3],
        HEADS=heads,
        HEAD_BLOCK=triton.next_power_of_2(heads),
        WIDTH=width,
        HALF=half,
        BLOCK=triton.next_power_of_2(half),
        num_warps=4 if heads * half >= 256 else 1,
    )


ROTATE = Op("rotate", rotate_reference, rotate_triton)
