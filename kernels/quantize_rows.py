"""Dynamic FP8 (e4m3) activations, one scale per row (token):

scale = max |x| / 448;    out = x / scale        so that x is about out * scale
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def quantize_rows_reference(x: Tensor, out: Tensor, scales: Tensor) -> None:
    """x [R, D] of any float type, out [R, D] FP8, scales [R] float32."""
    wide = x.float()
    scales.copy_(wide.abs().amax(-1).clamp_min(1e-12) / FP8_MAX)
    out.copy_((wide / scales[:, None]).to(FP8))


@jit
def _quantize_rows_kernel(x_ptr, out_ptr, scales_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8_MAX: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = row * WIDTH + column
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x)), 1e-12)
    tl.store(scales_ptr + row, largest / FP8_MAX)
    tl.store(out_ptr + place, (x * (FP8_MAX / largest)).to(out_ptr.dtype.element_ty), mask=inside)


def quantize_rows_triton(x: Tensor, out: Tensor, scales: Tensor) -> None:
    """Same contract as the reference, in one launch."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    warps = min(16, max(4, block // 1024))
    _quantize_rows_kernel[(rows,)](x, out, scales, WIDTH=width, BLOCK=block, FP8_MAX=FP8_MAX, num_warps=warps)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> FP8 [N, K] and scales [N] float32, one per output channel. Done once, offline."""
    out = torch.empty_like(weight, dtype=FP8)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    quantize_rows_reference(weight, out, scales)
    return out, scales


QUANTIZE_ROWS = Op("quantize_rows", quantize_rows_reference, quantize_rows_triton)
