"""The Hopper kernel of gated_projection.py, for at most 64 rows, in bfloat16.

The splits of a column tile exchange their parts inside the launch: each stores its part, waits until all have, and
finishes its share of the rows, adding the parts in order. All thread blocks must be resident; the counter must be zero.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phyai_kernels.hopper import (
    accumulate,
    gdc_launch_dependents,
    gl,
    gluon_jit,
    load_operand,
    load_weights,
    wait_for_arrivals,
)
from phyai_kernels.skinny import NormInput, Timed


@gluon_jit
def _gated_projection_kernel(
    operand_desc,
    weight_desc,
    weight_row,
    gate_ptr,
    gate_stride,
    scale_ptr,
    scale_stride,
    times_ptr,
    residual_ptr,
    next_ptr,
    row_sums_ptr,
    parts_ptr,
    arrived_ptr,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    K: gl.constexpr,
    SPLITS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    CHUNK: gl.constexpr,
    RING: gl.constexpr,
):
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = K // SPLITS // CHUNK
    SHARE: gl.constexpr = 64 // SPLITS
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.BlockedLayout([1, 4], [128 // BLOCK_N, BLOCK_N // 4], [4, 1], [1, 0])
    tile = gl.program_id(0)
    split = gl.program_id(1)
    start = split * (K // SPLITS)
    weights = load_weights(weight_desc, weight_row + tile * BLOCK_N, start, CHUNKS, BLOCK_N, CHUNK)
    ring = load_operand(operand_desc, start, CHUNKS, RING, CHUNK)

    # What the epilogue needs, while the operand is on its way.
    row = gl.arange(0, 64, gl.SliceLayout(1, OUT))
    share = split * SHARE + gl.arange(0, SHARE, gl.SliceLayout(1, OUT))
    column = tile * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, OUT))
    mine = (share < ROWS)[:, None]
    time = gl.load(times_ptr + share, mask=share < ROWS, other=0)
    gate = gl.load(gate_ptr + time[:, None] * gate_stride + column[None, :])
    scale = gl.load(scale_ptr + time[:, None] * scale_stride + column[None, :])
    cell = share[:, None] * WIDTH + column[None, :]
    x = gl.load(residual_ptr + cell, mask=mine, other=0.0, cache_modifier=".cg")
    part = accumulate(operand_desc, start, weights, ring, CHUNKS, RING, BLOCK_N, CHUNK, ACC)
    part = gl.convert_layout(part, OUT)
    place = (split * 64 + row[:, None]) * WIDTH + column[None, :]
    gl.store(parts_ptr + place, part, mask=(row < ROWS)[:, None])
    wait_for_arrivals(arrived_ptr + tile, SPLITS)
    total = gl.zeros([SHARE, BLOCK_N], gl.float32, OUT)
    for index in gl.static_range(SPLITS):
        total += gl.load(parts_ptr + index * 64 * WIDTH + cell, mask=mine, other=0.0, cache_modifier=".cg")
    x += gate * total
    gl.store(residual_ptr + cell, x, mask=mine)
    gl.store(next_ptr + cell, (x * scale).to(gl.bfloat16), mask=mine)
    gl.store(row_sums_ptr + tile * ROWS + share, gl.sum(x * x, 1), mask=share < ROWS)


def gated_projection_hopper(
    operand: Any,
    weight: Any,
    weight_row: int,
    gate: Timed,
    scale: Timed,
    residual: Tensor,
    x: NormInput,
    parts: Tensor,
    arrived: Tensor,
    splits: int,
    chunk: int,
    ring: int,
) -> None:
    """As `gated_projection_triton`; operand and weight are descriptors over [R, K] and all layers' rows [D L, K].

    parts float32 [>= splits, 64, D]; arrived int32 [D / 64], zero before the call and used once.
    """
    rows, width = residual.shape
    block = weight.block_shape[0]
    _gated_projection_kernel[(width // block, splits)](
        operand,
        weight,
        weight_row,
        gate.table,
        gate.table.stride(0),
        scale.table,
        scale.table.stride(0),
        scale.times,
        residual,
        *x,
        parts,
        arrived,
        ROWS=rows,
        WIDTH=width,
        K=operand.shape[1],
        SPLITS=splits,
        BLOCK_N=block,
        CHUNK=chunk,
        RING=min(ring, operand.shape[1] // splits // chunk),
        launch_pdl=True,
    )
