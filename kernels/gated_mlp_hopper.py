"""The Hopper kernel of gated_mlp.py, for at most 64 rows, in bfloat16."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phyai_kernels.hopper import accumulate, gdc_launch_dependents, gl, gluon_jit, load_operand, load_weights
from phyai_kernels.hopper_norm import load_norm_factor
from phyai_kernels.skinny import EPS, Timed


@gluon_jit
def _gated_mlp_kernel(
    operand_desc,
    weight_desc,
    weight_row,
    row_sums_ptr,
    shift_ptr,
    shift_stride,
    times_ptr,
    out_ptr,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    MLP_WIDTH: gl.constexpr,
    EPS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    CHUNK: gl.constexpr,
    RING: gl.constexpr,
):
    gdc_launch_dependents()
    CHUNKS: gl.constexpr = WIDTH // CHUNK
    HALF: gl.constexpr = BLOCK_N // 2
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HALF, HALF // 8], [4, 1], [1, 0])
    first_column = gl.program_id(0) * BLOCK_N
    weights = load_weights(weight_desc, weight_row + first_column, 0, CHUNKS, BLOCK_N, CHUNK)
    ring = load_operand(operand_desc, 0, CHUNKS, RING, CHUNK)
    factor = load_norm_factor(row_sums_ptr, ROWS, WIDTH, EPS, ACC)

    # What the epilogue needs, while the operand is on its way.
    acc_row = gl.arange(0, 64, gl.SliceLayout(1, ACC))
    acc_column = first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, ACC))
    time = gl.load(times_ptr + acc_row, mask=acc_row < ROWS, other=0)
    shift = gl.load(shift_ptr + time[:, None] * shift_stride + acc_column[None, :])

    total = accumulate(operand_desc, 0, weights, ring, CHUNKS, RING, BLOCK_N, CHUNK, ACC)
    y = total * factor[:, None] + shift
    gate, up = gl.split(gl.reshape(y, (64, HALF, 2)))
    cubic = gate + 0.044715 * gate * gate * gate
    h = gate * up / (1.0 + gl.exp2(-2.302208198144325 * cubic))  # gelu_tanh(gate) * up
    h = gl.convert_layout(h.to(gl.bfloat16), OUT)
    row = gl.arange(0, 64, gl.SliceLayout(1, OUT))
    column = gl.program_id(0) * HALF + gl.arange(0, HALF, gl.SliceLayout(0, OUT))
    gl.store(out_ptr + row[:, None] * MLP_WIDTH + column[None, :], h, mask=(row < ROWS)[:, None])


def gated_mlp_hopper(
    operand: Any, weight: Any, weight_row: int, row_sums: Tensor, shift: Timed, out: Tensor, chunk: int, ring: int
) -> None:
    """As `gated_mlp_triton`; operand and weight are descriptors over [R, D] and all layers' rows [2 F L, D]."""
    rows, mlp_width = out.shape
    block = weight.block_shape[0]
    _gated_mlp_kernel[(2 * mlp_width // block,)](
        operand,
        weight,
        weight_row,
        row_sums,
        shift.table,
        shift.table.stride(0),
        shift.times,
        out,
        ROWS=rows,
        WIDTH=operand.shape[1],
        MLP_WIDTH=mlp_width,
        EPS=EPS,
        BLOCK_N=block,
        CHUNK=chunk,
        RING=min(ring, operand.shape[1] // chunk),
        launch_pdl=True,
    )
