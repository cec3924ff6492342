"""Projection back to the width, gated residual, and everything the next product needs, in one launch:

    x <- x + gate * (operand @ W^T);   next_operand = x * (1 + scale);   row_sums = sum of x^2 per 64 columns

K is split over thread blocks so that a few rows still use the whole device. Each split stores its part; the last one
to arrive at a column tile adds the parts in order, so the result does not depend on who was first, and nobody waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, chained, gdc_launch_dependents, gdc_wait, jit, tl, triton
from phyai_kernels.skinny import ROW_TILE, SUM_TILE, NormInput, Timed, k_block, row_product, write_norm_input


def gated_projection_reference(
    operand: Tensor, weight: Tensor, gate: Timed, scale: Timed, residual: Tensor, x: NormInput
) -> None:
    """Updates residual [R, D] float32 and fills x from it. operand [R, K], weight [D, K], gate, scale of D columns."""
    residual += gate.rows() * (operand.float() @ weight.float().T)
    write_norm_input(residual, scale, x)


@jit
def _gated_projection_kernel(
    operand_ptr,
    weight_ptr,
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
    rows,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    tile = tl.program_id(0)
    split = tl.program_id(1)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    time = tl.load(times_ptr + row, mask=inside, other=0)
    if PDL:
        gdc_wait()
    place = row[:, None] * WIDTH + column[None, :]
    part = row_product(operand_ptr, weight_ptr, row, inside, column, split * (K // SPLITS), K, K // SPLITS, BLOCK_K)
    gate = tl.load(gate_ptr + time[:, None] * gate_stride + column[None, :])
    scale = tl.load(scale_ptr + time[:, None] * scale_stride + column[None, :])
    x = tl.load(residual_ptr + place, mask=inside[:, None], other=0.0)
    tl.store(parts_ptr + split * rows * WIDTH + place, part, mask=inside[:, None])
    tl.debug_barrier()
    arrived = arrived_ptr + tl.program_id(2) * tl.num_programs(0) + tile
    if tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1:
        tl.debug_barrier()
        total = tl.zeros((ROWS, BLOCK_N), tl.float32)
        for index in tl.static_range(SPLITS):
            stored = parts_ptr + index * rows * WIDTH + place
            total += tl.load(stored, mask=inside[:, None], other=0.0, cache_modifier=".cg")
        x += gate * total
        tl.store(residual_ptr + place, x, mask=inside[:, None])
        tl.store(next_ptr + place, (x * scale).to(next_ptr.dtype.element_ty), mask=inside[:, None])
        tl.store(row_sums_ptr + tile * rows + row, tl.sum(x * x, 1), mask=inside)
        tl.store(arrived, 0)


def projection_workspace(rows: int, width: int, splits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """parts float32 [splits, R, D] and arrival counters int32 (zero between calls) for `gated_projection_triton`."""
    tiles = (width // SUM_TILE) * -(-rows // ROW_TILE)
    parts = torch.empty(splits, rows, width, dtype=torch.float32, device=device)
    return parts, torch.zeros(tiles, dtype=torch.int32, device=device)


def gated_projection_triton(
    operand: Tensor,
    weight: Tensor,
    gate: Timed,
    scale: Timed,
    residual: Tensor,
    x: NormInput,
    workspace: tuple[Tensor, Tensor] | None = None,
    pdl: bool = False,
) -> None:
    """Same contract as the reference. `workspace` comes from `projection_workspace`; its splits must divide K."""
    (rows, k), width = operand.shape, weight.shape[0]
    parts, arrived = workspace or projection_workspace(rows, width, 1 if k % 256 else k // 256, operand.device)
    splits = parts.shape[0]
    _gated_projection_kernel[(width // SUM_TILE, splits, triton.cdiv(rows, ROW_TILE))](
        operand,
        weight,
        gate.table,
        gate.table.stride(0),
        scale.table,
        scale.table.stride(0),
        scale.times,
        residual,
        *x,
        parts,
        arrived,
        rows,
        WIDTH=width,
        K=k,
        SPLITS=splits,
        ROWS=ROW_TILE,
        BLOCK_N=SUM_TILE,
        BLOCK_K=k_block(k // splits),
        num_stages=4,
        **chained(pdl),
    )


GATED_PROJECTION = Op("gated_projection", gated_projection_reference, gated_projection_triton)
