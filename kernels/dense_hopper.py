"""The Hopper kernel of dense.py: hopper_product.py, with scales and GeGLU applied in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phyai_kernels.hopper import describe, fast_tanh, gdc_launch_dependents, gdc_wait, gl, gluon_jit, refuse
from phyai_kernels.hopper_product import (
    ROW_TILE,
    allocate_ring,
    count_programs,
    find_share,
    load_chunks,
    multiply_tile,
    processors,
)

if TYPE_CHECKING:
    from phyai_kernels.dense import Scales

FP8 = torch.float8_e4m3fn


@gluon_jit
def ask_scales(scales_ptr, first, end, COUNT: gl.constexpr):
    """Scales of COUNT rows or columns; asked for before a product, used after it."""
    place = first + gl.arange(0, COUNT, gl.BlockedLayout([1], [32], [4], [0]))
    return gl.load(scales_ptr + place, mask=place < end, other=0.0)


@gluon_jit
def apply_scales(total, row_scales, column_scales):
    """A product of FP8 operands in their own units."""
    row_scales = gl.convert_layout(row_scales, gl.SliceLayout(1, total.type.layout))
    column_scales = gl.convert_layout(column_scales, gl.SliceLayout(0, total.type.layout))
    return total * row_scales[:, None] * column_scales[None, :]


@gluon_jit
def _store_tile(total, out_ptr, first_row, first_column, rows, N: gl.constexpr, GEGLU: gl.constexpr):
    ROWS: gl.constexpr = total.type.shape[0]
    WIDTH: gl.constexpr = N // 2 if GEGLU else N
    COLUMNS: gl.constexpr = total.type.shape[1] // 2 if GEGLU else total.type.shape[1]
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    if GEGLU:
        gate, up = gl.split(gl.reshape(total, (ROWS, COLUMNS, 2)))
        half = 0.5 * gate * up
        total = half + half * fast_tanh(gate * (0.7978845608028654 + 0.035677408136300125 * gate * gate))
        first_column = first_column // 2
    stored = gl.convert_layout(total.to(gl.bfloat16), OUT)
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, OUT))
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    gl.store(out_ptr + row[:, None] * WIDTH + column[None, :], stored, mask=(row < rows)[:, None])


@gluon_jit
def _multiply_tiles(
    HALF: gl.constexpr,
    x_ring,
    weight_ring,
    full,
    free,
    turn,
    x_scales_ptr,
    weight_scales_ptr,
    out_ptr,
    rows,
    row_tiles,
    blocks,
    N: gl.constexpr,
    CHUNKS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    GEGLU: gl.constexpr,
    SCALED: gl.constexpr,
):
    gdc_wait()
    row_tile, first, step = find_share(row_tiles)
    row = row_tile * 128
    done = 0
    if ROWS == 64:
        row += HALF * 64
    else:  # this warp group's turn is every other tile
        first += HALF * step
        step *= 2
        done += HALF * CHUNKS
    if SCALED:
        x_scales = ask_scales(x_scales_ptr, row, rows, ROWS)
    for block in range(first, blocks, step):
        column = block * BLOCK_N
        if SCALED:
            weight_scales = ask_scales(weight_scales_ptr, column, N, BLOCK_N)
        total, _, done = multiply_tile(
            HALF, x_ring, weight_ring, weight_ring, full, free, turn, done, CHUNKS, BLOCK_N, 0, STAGES, ROWS
        )
        if ROWS == 128:
            done += CHUNKS
        if SCALED:
            total = apply_scales(total, x_scales, weight_scales)
        _store_tile(total, out_ptr, row, column, rows, N, GEGLU)


@gluon_jit
def _dense_kernel(
    x_desc,
    weight_desc,
    x_scales_ptr,
    weight_scales_ptr,
    out_ptr,
    rows,
    row_tiles,
    blocks,
    N: gl.constexpr,
    K: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    GEGLU: gl.constexpr,
    SCALED: gl.constexpr,
):
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = K // CHUNK
    x_ring, weight_ring, _, full, free, turn = allocate_ring(
        x_desc, weight_desc, weight_desc, CHUNK, BLOCK_N, 0, STAGES, ROWS
    )
    # fmt: off
    gl.warp_specialize(  # constants stay constants only in tuples written here
        [
            (_multiply_tiles, (
                0, x_ring, weight_ring, full, free, turn, x_scales_ptr, weight_scales_ptr, out_ptr,
                rows, row_tiles, blocks, N, CHUNKS, BLOCK_N, STAGES, ROWS, GEGLU, SCALED,
            )),
            (_multiply_tiles, (
                1, x_ring, weight_ring, full, free, turn, x_scales_ptr, weight_scales_ptr, out_ptr,
                rows, row_tiles, blocks, N, CHUNKS, BLOCK_N, STAGES, ROWS, GEGLU, SCALED,
            )),
            (load_chunks, (
                x_desc, weight_desc, weight_desc, x_ring, weight_ring, weight_ring, full, free, row_tiles, blocks,
                CHUNKS, CHUNK, BLOCK_N, 0, STAGES, ROWS,
            )),
        ],
        [4, 1],
        [232, 40],
    )
    # fmt: on


def refuse_dense(
    device: torch.device, x: Tensor, weight: Tensor, out: Tensor, geglu: bool = False, scales: Scales | None = None
) -> str | None:
    """Why this kernel cannot take the call, or None."""
    wanted = FP8 if scales is not None else torch.bfloat16
    if x.dtype != wanted or weight.dtype != wanted or out.dtype != torch.bfloat16:
        return f"takes bfloat16, or FP8 with scales, not {x.dtype}, and makes bfloat16, not {out.dtype}"
    if weight.shape[0] % 128 or weight.shape[1] % 128:
        return f"needs a weight of multiples of 128, not {tuple(weight.shape)}"
    return refuse(device)


def dense_hopper(
    x: Tensor, weight: Tensor, out: Tensor, geglu: bool = False, scales: Scales | None = None, block_n: int = 128
) -> None:
    """Same contract as `dense_reference`; `block_n`: 128 or 256 columns of a tile."""
    (rows, k), columns = x.shape, len(weight)
    chunk, row_tiles, blocks = 128 // x.element_size(), -(-rows // ROW_TILE), columns // block_n
    turns = block_n == 128 and row_tiles * blocks > processors(x.device)
    _dense_kernel[(count_programs(row_tiles, blocks, x.device),)](
        describe(x, 128 if turns else 64, chunk),
        describe(weight, block_n, chunk),
        *(scales or (out, out)),
        out,
        rows,
        row_tiles,
        blocks,
        N=columns,
        K=k,
        CHUNK=chunk,
        BLOCK_N=block_n,
        STAGES=4 if block_n == 256 else 6,
        ROWS=128 if turns else 64,
        GEGLU=geglu,
        SCALED=scales is not None,
        num_warps=4,
        launch_pdl=True,
    )
