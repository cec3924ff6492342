"""The Hopper kernel of dense.py: persistent, one warp that loads, two warp groups that multiply and store.

A thread block walks over output tiles [128, BLOCK_N]; each warp group owns 64 of the rows. Loads run ahead through a
ring of STAGES chunks of K, across tiles, so the tensor cores see no gap but their own epilogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phyai_kernels.hopper import (
    describe,
    fast_tanh,
    gl,
    gluon_jit,
    mbarrier,
    refuse,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

if TYPE_CHECKING:
    from phyai_kernels.dense import Scales

ROW_TILE = 128
FP8 = torch.float8_e4m3fn


@gluon_jit
def _load_chunks(
    x_desc,
    weight_desc,
    x_ring,
    weight_ring,
    full,
    free,
    row_tiles,
    tiles,
    K: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    BYTES: gl.constexpr,
):
    filled = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = tile % row_tiles * 128
        column = tile // row_tiles * BLOCK_N
        for start in range(0, K, CHUNK):
            stage = filled % STAGES
            mbarrier.wait(free.index(stage), (filled // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            tma.async_copy_global_to_shared(x_desc, [row, start], full.index(stage), x_ring.index(2 * stage))
            tma.async_copy_global_to_shared(x_desc, [row + 64, start], full.index(stage), x_ring.index(2 * stage + 1))
            tma.async_copy_global_to_shared(weight_desc, [column, start], full.index(stage), weight_ring.index(stage))
            filled += 1


@gluon_jit
def _multiply_tiles(
    HALF: gl.constexpr,
    x_ring,
    weight_ring,
    full,
    free,
    x_scales_ptr,
    weight_scales_ptr,
    out_ptr,
    rows,
    row_tiles,
    tiles,
    N: gl.constexpr,
    K: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    GEGLU: gl.constexpr,
    SCALED: gl.constexpr,
    LAG: gl.constexpr,
):
    K_STEP: gl.constexpr = 32 if SCALED else 16  # of one instruction: 32 bytes
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, K_STEP])
    if HALF == 1:  # behind by LAG chunks, so that one multiplies while the other stores
        mbarrier.wait(full.index(LAG), 0)
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        total = gl.zeros([64, BLOCK_N], gl.float32, ACC)
        for start in range(0, K, CHUNK):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            weight = weight_ring.index(stage).permute((1, 0))
            total = warpgroup_mma(x_ring.index(2 * stage + HALF), weight, total, is_async=True)
            total = warpgroup_mma_wait(1, deps=(total,))
            mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), count=1, pred=start > 0)
            done += 1
        total = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), count=1)
        first_row = tile % row_tiles * 128 + HALF * 64
        first_column = tile // row_tiles * BLOCK_N
        if SCALED:
            row = first_row + gl.arange(0, 64, gl.SliceLayout(1, ACC))
            column = first_column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, ACC))
            x_scale = gl.load(x_scales_ptr + row, mask=row < rows, other=0.0)
            total = total * x_scale[:, None] * gl.load(weight_scales_ptr + column)[None, :]
        _store_tile(total, out_ptr, first_row, first_column, rows, N, BLOCK_N, GEGLU)


@gluon_jit
def _store_tile(
    total,
    out_ptr,
    first_row,
    first_column,
    rows,
    N: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GEGLU: gl.constexpr,
):
    COLUMNS: gl.constexpr = BLOCK_N // 2 if GEGLU else BLOCK_N
    WIDTH: gl.constexpr = N // 2 if GEGLU else N
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    if GEGLU:
        gate, up = gl.split(gl.reshape(total, (64, COLUMNS, 2)))
        half = 0.5 * gate * up
        total = half + half * fast_tanh(gate * (0.7978845608028654 + 0.035677408136300125 * gate * gate))
        first_column = first_column // 2
    stored = gl.convert_layout(total.to(gl.bfloat16), OUT)
    row = first_row + gl.arange(0, 64, gl.SliceLayout(1, OUT))
    column = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    gl.store(out_ptr + row[:, None] * WIDTH + column[None, :], stored, mask=(row < rows)[:, None])


@gluon_jit
def _dense_kernel(
    x_desc,
    weight_desc,
    x_scales_ptr,
    weight_scales_ptr,
    out_ptr,
    rows,
    row_tiles,
    tiles,
    N: gl.constexpr,
    K: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    GEGLU: gl.constexpr,
    SCALED: gl.constexpr,
    LAG: gl.constexpr,
):
    BYTES: gl.constexpr = (128 + BLOCK_N) * CHUNK * (1 if SCALED else 2)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES, 64, CHUNK], x_desc.layout)
    weight_ring = gl.allocate_shared_memory(weight_desc.dtype, [STAGES, BLOCK_N, CHUNK], weight_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    # fmt: off
    gl.warp_specialize(  # constants stay constants only in tuples written here
        [
            (_multiply_tiles, (
                0, x_ring, weight_ring, full, free, x_scales_ptr, weight_scales_ptr, out_ptr, rows, row_tiles, tiles,
                N, K, CHUNK, BLOCK_N, STAGES, GEGLU, SCALED, LAG,
            )),
            (_multiply_tiles, (
                1, x_ring, weight_ring, full, free, x_scales_ptr, weight_scales_ptr, out_ptr, rows, row_tiles, tiles,
                N, K, CHUNK, BLOCK_N, STAGES, GEGLU, SCALED, LAG,
            )),
            (_load_chunks, (
                x_desc, weight_desc, x_ring, weight_ring, full, free, row_tiles, tiles,
                K, CHUNK, BLOCK_N, STAGES, BYTES,
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
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    geglu: bool = False,
    scales: Scales | None = None,
    block_n: int = 0,
    lag: int = 2,
) -> None:
    """Same contract as `dense_reference`; `block_n` 128 or 256 columns of a tile, 0 chooses; `lag` chunks."""
    (rows, k), columns = x.shape, weight.shape[0]
    row_tiles = -(-rows // ROW_TILE)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 132
    wide = columns % 256 == 0 and columns // 256 * row_tiles >= 2 * processors
    block_n = block_n or (256 if wide and geglu else 128)
    chunk = 128 // x.element_size()
    tiles = row_tiles * (columns // block_n)
    _dense_kernel[(min(tiles, processors),)](
        describe(x, 64, chunk),
        describe(weight, block_n, chunk),
        scales.x if scales is not None else out,
        scales.weight if scales is not None else out,
        out,
        rows,
        row_tiles,
        tiles,
        N=columns,
        K=k,
        CHUNK=chunk,
        BLOCK_N=block_n,
        STAGES=4 if block_n == 256 else 6,
        GEGLU=geglu,
        SCALED=scales is not None,
        LAG=min(lag, k // chunk - 1),
        num_warps=4,
    )
