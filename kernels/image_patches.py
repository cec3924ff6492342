"""Frames of a camera cut into the operand of a patch embedding, pixel values less 128 and otherwise as they are:

    out[b, t, (c p + y) p + x] = frame[b, row(t) p + y, column(t) p + x, c] - 128

Whole numbers up to 256 are exact in bfloat16, so scaling to [-1, 1] belongs into the weights (`fold_patches`). Columns
behind 3 p p are zero: products want rows that are a multiple of 16 bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from phyai_kernels.op import Op, jit, tl, triton

MIDDLE = 128
COLUMNS = 16  # the padded width is a multiple of these


def fold_patches(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """weight [D, 3 p p], bias [D] for pixels in [-1, 1] -> weight [D, padded] in `dtype` and bias for this operand."""
    folded = pad(weight.float() * (2.0 / 255.0), (0, -weight.shape[1] % COLUMNS)).to(dtype)
    return folded, bias.float() + weight.float().sum(1) * (2.0 * MIDDLE / 255.0 - 1.0)


def image_patches_reference(frames: Tensor, out: Tensor, patch: int) -> None:
    """frames uint8 [B, h, w, 3], sides multiples of the patch p -> out [B, T, padded] of a float type."""
    robots, height, width, colours = frames.shape
    grid = frames.view(robots, height // patch, patch, width // patch, patch, colours).permute(0, 1, 3, 5, 2, 4)
    cut = grid.reshape(robots, out.shape[1], -1)
    out.zero_()
    out[..., : cut.shape[-1]] = cut.to(out.dtype) - MIDDLE


@jit
def _image_patches_kernel(
    frames_ptr,
    out_ptr,
    out_stride,
    width,
    height,
    PATCH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    MIDDLE: tl.constexpr,
):
    token = tl.program_id(0)
    robot = tl.program_id(1)
    across = width // PATCH
    column = tl.arange(0, BLOCK)
    colour = column // (PATCH * PATCH)
    y = column % (PATCH * PATCH) // PATCH + token // across * PATCH
    x = column % PATCH + token % across * PATCH
    known = colour < 3
    pixel = ((robot * height + y) * width + x) * 3 + colour
    value = tl.load(frames_ptr + pixel, mask=known, other=MIDDLE).to(tl.float32) - MIDDLE
    place = robot * out_stride + token * COLUMNS + column
    tl.store(out_ptr + place, value.to(out_ptr.dtype.element_ty), mask=column < COLUMNS)


def image_patches_triton(frames: Tensor, out: Tensor, patch: int) -> None:
    """Same contract as the reference, in one launch."""
    robots, height, width, _ = frames.shape
    _image_patches_kernel[(out.shape[1], robots)](
        frames,
        out,
        out.stride(0),
        width,
        height,
        PATCH=patch,
        COLUMNS=out.shape[2],
        BLOCK=triton.next_power_of_2(out.shape[2]),
        MIDDLE=MIDDLE,
        num_warps=4,
    )


IMAGE_PATCHES = Op("image_patches", image_patches_reference, image_patches_triton)
