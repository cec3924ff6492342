"""The Hopper kernel of prefix_qkv.py: tiles of 160 columns, so that 968 rows make one round on 132 multiprocessors.

A tile is half of a query head (64 rotary pairs) and a sixteenth of keys and values (16 pairs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from phyai_kernels.dense_hopper import apply_scales, ask_scales
from phyai_kernels.hopper import describe, gdc_launch_dependents, gdc_wait, gl, gluon_jit
from phyai_kernels.hopper_product import ROW_TILE, allocate_ring, count_programs, find_share, load_chunks, multiply_tile

if TYPE_CHECKING:
    from phyai_kernels.dense import Scales

HEADS, HEAD_DIM = 8, 256


@gluon_jit
def _store_pairs(
    total,
    head,
    first_pair,
    first_row,
    rows,
    tokens,
    rotary_ptr,
    sin_offset,
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    """total [64, 2 P]: first elements of P rotary pairs, then the second ones."""
    PAIRS: gl.constexpr = total.type.shape[1] // 2
    HALF: gl.constexpr = HEAD_DIM // 2
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // PAIRS, PAIRS // 8], [4, 1], [1, 0])
    first, second = gl.split(gl.permute(gl.reshape(total, (64, 2, PAIRS)), (0, 2, 1)))
    first = gl.convert_layout(first, OUT)
    second = gl.convert_layout(second, OUT)
    row = first_row + gl.arange(0, 64, gl.SliceLayout(1, OUT))
    robot = row // tokens
    token = row - robot * tokens
    pair = first_pair + gl.arange(0, PAIRS, gl.SliceLayout(0, OUT))
    inside = (row < rows)[:, None]
    if head <= HEADS:  # values are not rotated
        angle = rotary_ptr + token[:, None] * HALF + pair[None, :]
        cos = gl.load(angle, mask=inside, other=0.0)
        sin = gl.load(angle + sin_offset, mask=inside, other=0.0)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    if head < HEADS:
        out = queries_ptr + row[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + pair[None, :]
        gl.store(out, first.to(gl.bfloat16), mask=inside)
        gl.store(out + HALF, second.to(gl.bfloat16), mask=inside)
    else:
        cell = (robot * robot_stride + token * HEAD_DIM)[:, None] + pair[None, :]
        if head == HEADS:
            gl.store(keys_ptr + cell, first.to(gl.bfloat16), mask=inside)
            gl.store(keys_ptr + cell + HALF, second.to(gl.bfloat16), mask=inside)
        else:
            gl.store(values_ptr + cell, first.to(gl.bfloat16), mask=inside)
            gl.store(values_ptr + cell + HALF, second.to(gl.bfloat16), mask=inside)


@gluon_jit
def _project_tiles(
    HALF: gl.constexpr,
    x_ring,
    weight_ring,
    extra_ring,
    full,
    free,
    turn,
    x_scales_ptr,
    weight_scales_ptr,
    rotary_ptr,
    sin_offset,
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    rows,
    tokens,
    row_tiles,
    blocks,
    N: gl.constexpr,
    K: gl.constexpr,
    CHUNKS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    EXTRA: gl.constexpr,
    STAGES: gl.constexpr,
    SCALED: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    gdc_wait()
    row_tile, first, step = find_share(row_tiles)
    row = row_tile * 128 + HALF * 64
    if SCALED:
        x_scales = ask_scales(x_scales_ptr, row, rows, 64)
    done = 0
    for block in range(first, blocks, step):
        column = block * (BLOCK_N + EXTRA)
        if SCALED:
            scales = ask_scales(weight_scales_ptr, column, N, BLOCK_N)
            more_scales = ask_scales(weight_scales_ptr, column + BLOCK_N, N, EXTRA)
        total, rest, done = multiply_tile(
            HALF, x_ring, weight_ring, extra_ring, full, free, turn, done, CHUNKS, BLOCK_N, EXTRA, STAGES, 64
        )
        if SCALED:
            total = apply_scales(total, x_scales, scales)
            rest = apply_scales(rest, x_scales, more_scales)
        _store_pairs(
            total, block // 2, block % 2 * (BLOCK_N // 2), row, rows, tokens, rotary_ptr, sin_offset,
            queries_ptr, keys_ptr, values_ptr, robot_stride, HEADS, HEAD_DIM,
        )  # fmt: skip
        _store_pairs(
            rest, HEADS + block // HEADS, block % HEADS * (EXTRA // 2), row, rows, tokens, rotary_ptr, sin_offset,
            queries_ptr, keys_ptr, values_ptr, robot_stride, HEADS, HEAD_DIM,
        )  # fmt: skip


@gluon_jit
def _prefix_qkv_kernel(
    x_desc,
    weight_desc,
    extra_desc,
    x_scales_ptr,
    weight_scales_ptr,
    rotary_ptr,
    sin_offset,
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    rows,
    tokens,
    row_tiles,
    blocks,
    N: gl.constexpr,
    K: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    EXTRA: gl.constexpr,
    STAGES: gl.constexpr,
    SCALED: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = K // CHUNK
    x_ring, weight_ring, extra_ring, full, free, turn = allocate_ring(
        x_desc, weight_desc, extra_desc, CHUNK, BLOCK_N, EXTRA, STAGES, 64
    )
    # fmt: off
    gl.warp_specialize(  # constants stay constants only in tuples written here
        [
            (_project_tiles, (
                0, x_ring, weight_ring, extra_ring, full, free, turn, x_scales_ptr, weight_scales_ptr, rotary_ptr,
                sin_offset, queries_ptr, keys_ptr, values_ptr, robot_stride, rows, tokens, row_tiles, blocks,
                N, K, CHUNKS, BLOCK_N, EXTRA, STAGES, SCALED, HEADS, HEAD_DIM,
            )),
            (_project_tiles, (
                1, x_ring, weight_ring, extra_ring, full, free, turn, x_scales_ptr, weight_scales_ptr, rotary_ptr,
                sin_offset, queries_ptr, keys_ptr, values_ptr, robot_stride, rows, tokens, row_tiles, blocks,
                N, K, CHUNKS, BLOCK_N, EXTRA, STAGES, SCALED, HEADS, HEAD_DIM,
            )),
            (load_chunks, (
                x_desc, weight_desc, extra_desc, x_ring, weight_ring, extra_ring, full, free, row_tiles, blocks,
                CHUNKS, CHUNK, BLOCK_N, EXTRA, STAGES, 64,
            )),
        ],
        [4, 1],
        [232, 40],
    )
    # fmt: on


def prefix_qkv_hopper(
    x: Tensor,
    weight: Tensor,
    scales: Scales | None,
    rotary: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Same contract as `prefix_qkv_reference`."""
    (rows, k), columns = x.shape, len(weight)
    chunk, row_tiles = 128 // x.element_size(), -(-rows // ROW_TILE)
    block_n, extra = HEAD_DIM // 2, HEAD_DIM // HEADS
    blocks = columns // (block_n + extra)
    _prefix_qkv_kernel[(count_programs(row_tiles, blocks, x.device),)](
        describe(x, 64, chunk),
        describe(weight, block_n, chunk),
        describe(weight, extra, chunk),
        *(scales or (keys, keys)),
        rotary,
        rotary.stride(0),
        queries,
        keys,
        values,
        keys.stride(0),
        rows,
        queries.shape[1],
        row_tiles,
        blocks,
        N=columns,
        K=k,
        CHUNK=chunk,
        BLOCK_N=block_n,
        EXTRA=extra,
        STAGES=5,
        SCALED=scales is not None,
        HEADS=HEADS,
        HEAD_DIM=HEAD_DIM,
        num_warps=4,
        launch_pdl=True,
    )
