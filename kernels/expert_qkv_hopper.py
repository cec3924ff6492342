"""The Hopper kernel of expert_qkv.py, for one robot and at most 64 rows, in bfloat16."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phyai_kernels.hopper import accumulate, gdc_launch_dependents, gl, gluon_jit, load_operand, load_weights
from phyai_kernels.hopper_norm import load_norm_factor
from phyai_kernels.skinny import EPS, Timed


@gluon_jit
def _expert_qkv_kernel(
    operand_desc,
    weight_desc,
    weight_row,
    row_sums_ptr,
    shift_ptr,
    shift_stride,
    times_ptr,
    rotary_ptr,
    sin_offset,
    length_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    EPS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    CHUNK: gl.constexpr,
    RING: gl.constexpr,
):
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = WIDTH // CHUNK
    HALF: gl.constexpr = HEAD_DIM // 2
    PAIRS: gl.constexpr = BLOCK_N // 2
    TILES: gl.constexpr = HEAD_DIM // BLOCK_N
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // PAIRS, PAIRS // 8], [4, 1], [1, 0])
    head = gl.program_id(0) // TILES
    tile = gl.program_id(0) % TILES
    first_column = gl.program_id(0) * BLOCK_N
    weights = load_weights(weight_desc, weight_row + first_column, 0, CHUNKS, BLOCK_N, CHUNK)
    ring = load_operand(operand_desc, 0, CHUNKS, RING, CHUNK)
    factor = load_norm_factor(row_sums_ptr, ROWS, WIDTH, EPS, ACC)

    # What the epilogue needs, while the operand is on its way.
    acc_row = gl.arange(0, 64, gl.SliceLayout(1, ACC))
    acc_column = first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, ACC))
    time = gl.load(times_ptr + acc_row, mask=acc_row < ROWS, other=0)
    shift = gl.load(shift_ptr + time[:, None] * shift_stride + acc_column[None, :])
    row = gl.arange(0, 64, gl.SliceLayout(1, OUT))
    pair = gl.arange(0, PAIRS, gl.SliceLayout(0, OUT))
    inside = (row < ROWS)[:, None]
    place = gl.load(length_ptr) + row
    offset = tile * PAIRS + pair[None, :]
    angle = rotary_ptr + place[:, None] * HALF + offset
    cos = gl.load(angle, mask=inside, other=0.0)
    sin = gl.load(angle + sin_offset, mask=inside, other=0.0)

    total = accumulate(operand_desc, 0, weights, ring, CHUNKS, RING, BLOCK_N, CHUNK, ACC)
    y = total * factor[:, None] + shift
    even, odd = gl.split(gl.reshape(y, (64, PAIRS, 2)))
    even = gl.convert_layout(even, OUT)
    odd = gl.convert_layout(odd, OUT)
    turned = (even * cos - odd * sin).to(gl.bfloat16)
    turned_odd = (odd * cos + even * sin).to(gl.bfloat16)
    if head < HEADS:
        out = queries_ptr + row[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + offset
        gl.store(out, turned, mask=inside)
        gl.store(out + HALF, turned_odd, mask=inside)
    elif head == HEADS:
        out = keys_ptr + place[:, None] * HEAD_DIM + offset
        gl.store(out, turned, mask=inside)
        gl.store(out + HALF, turned_odd, mask=inside)
    else:  # values are not rotated
        out = values_ptr + place[:, None] * HEAD_DIM + offset
        gl.store(out, even.to(gl.bfloat16), mask=inside)
        gl.store(out + HALF, odd.to(gl.bfloat16), mask=inside)


def expert_qkv_hopper(
    operand: Any,
    weight: Any,
    weight_row: int,
    row_sums: Tensor,
    shift: Timed,
    rotary: Tensor,
    prefix_length: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    chunk: int,
    ring: int,
) -> None:
    """As `expert_qkv_triton`; operand, weight: descriptors over [R, D] and all layers' rows; keys, values [C, K]."""
    rows, head_dim = len(queries), keys.shape[-1]
    block, columns = weight.block_shape[0], shift.table.shape[-1]
    _expert_qkv_kernel[(columns // block,)](
        operand,
        weight,
        weight_row,
        row_sums,
        shift.table,
        shift.table.stride(0),
        shift.times,
        rotary,
        rotary.stride(0),
        prefix_length,
        queries,
        keys,
        values,
        ROWS=rows,
        WIDTH=operand.shape[1],
        HEADS=queries.shape[1] // head_dim,
        HEAD_DIM=head_dim,
        EPS=EPS,
        BLOCK_N=block,
        CHUNK=chunk,
        RING=min(ring, operand.shape[1] // chunk),
        launch_pdl=True,
    )
