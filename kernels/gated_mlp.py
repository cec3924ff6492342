"""First half of an expert MLP in one launch: norm (folded, see skinny.py), gate and up products, GeGLU.

    h = gelu_tanh(norm(x) @ G^T) * (norm(x) @ U^T)

W [2 F, D] holds the rows of gate G and up U in turns (g0, u0, g1, u1, ..): both factors of an output sit side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu

from phyai_kernels.op import Op, chained, gdc_launch_dependents, gdc_wait, jit, tl, triton
from phyai_kernels.skinny import EPS, ROW_TILE, NormInput, Timed, fold_reference, k_block, norm_factor, row_product


def interleave_rows(gate: Tensor, up: Tensor) -> Tensor:
    """gate, up [F, D] -> [2 F, D], their rows in turns."""
    return torch.stack([gate, up], 1).flatten(0, 1)


def gated_mlp_reference(x: NormInput, weight: Tensor, shift: Timed, out: Tensor) -> None:
    """Fills out [R, F] for weight [2 F, D] in turns and shift with 2 F columns."""
    y = fold_reference(x, weight, shift)
    out.copy_(gelu(y[:, 0::2], approximate="tanh") * y[:, 1::2])


@jit
def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x sigmoid(2 ..) in powers of two."""
    return x / (1.0 + tl.exp2(-2.302208198144325 * (x + 0.044715 * x * x * x)))


@jit
def _gated_mlp_kernel(
    operand_ptr,
    row_sums_ptr,
    weight_ptr,
    shift_ptr,
    shift_stride,
    times_ptr,
    out_ptr,
    rows,
    WIDTH: tl.constexpr,
    MLP_WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    HALF: tl.constexpr = BLOCK_N // 2
    tile = tl.program_id(0)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    time = tl.load(times_ptr + row, mask=inside, other=0)
    if PDL:
        gdc_wait()
    factor = norm_factor(row_sums_ptr, row, inside, rows, WIDTH, EPS)
    shift = tl.load(shift_ptr + time[:, None] * shift_stride + column[None, :])
    y = row_product(operand_ptr, weight_ptr, row, inside, column, 0, WIDTH, WIDTH, BLOCK_K)
    y = y * factor[:, None] + shift
    gate, up = tl.split(tl.reshape(y, (ROWS, HALF, 2)))
    h = gelu_tanh(gate) * up
    out = out_ptr + row[:, None] * MLP_WIDTH + tile * HALF + tl.arange(0, HALF)[None, :]
    tl.store(out, h.to(out_ptr.dtype.element_ty), mask=inside[:, None])


def gated_mlp_triton(x: NormInput, weight: Tensor, shift: Timed, out: Tensor, pdl: bool = False) -> None:
    """Same contract as the reference, in one launch."""
    rows, width = x.operand.shape
    block = min(64, weight.shape[0])
    _gated_mlp_kernel[(weight.shape[0] // block, triton.cdiv(rows, ROW_TILE))](
        *x,
        weight,
        shift.table,
        shift.table.stride(0),
        shift.times,
        out,
        rows,
        WIDTH=width,
        MLP_WIDTH=weight.shape[0] // 2,
        EPS=EPS,
        ROWS=ROW_TILE,
        BLOCK_N=block,
        BLOCK_K=k_block(width),
        num_stages=4,
        **chained(pdl),
    )


GATED_MLP = Op("gated_mlp", gated_mlp_reference, gated_mlp_triton)
