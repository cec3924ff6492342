"""Pieces of the Hopper products of many rows: out[r, n] = sum_k x[r, k] W[n, k], one warp loads, two groups multiply.

A thread block keeps to 128 rows and walks over blocks of BLOCK_N columns, plus EXTRA where that lets fewer, fuller
rounds cover the matrix. With ROWS 64 the warp groups share each tile, half of the rows each; with ROWS 128 they take
turns at whole ones, and one multiplies while the other stores: for several tiles a thread block. Loads run ahead
through a ring of STAGES chunks of K, across tiles. Weights depend on nothing: the first chunks of them are asked for
before a launch waits for its predecessor.
"""

from __future__ import annotations

import torch

from phyai_kernels.hopper import gdc_wait, gl, gluon_jit, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

ROW_TILE = 128


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; those of an H200 where there is none, so that kernels compile anywhere."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def count_programs(row_tiles: int, blocks: int, device: torch.device) -> int:
    """Thread blocks of a product: each keeps to one tile of rows."""
    return row_tiles * max(1, min(blocks, processors(device) // row_tiles))


@gluon_jit
def find_share(row_tiles):
    """(row tile, first block of columns, step to the next) of this thread block."""
    return gl.program_id(0) % row_tiles, gl.program_id(0) // row_tiles, gl.num_programs(0) // row_tiles


@gluon_jit
def allocate_ring(
    x_desc,
    weight_desc,
    extra_desc,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    EXTRA: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
):
    """(x, weight, extra, full, free, turn); with ROWS 64 chunk c is in slots 2 c and 2 c + 1 of x."""
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [128 // ROWS * STAGES, ROWS, CHUNK], x_desc.layout)
    weight_ring = gl.allocate_shared_memory(weight_desc.dtype, [STAGES, BLOCK_N, CHUNK], weight_desc.layout)
    extra_ring = weight_ring
    if EXTRA > 0:
        extra_ring = gl.allocate_shared_memory(extra_desc.dtype, [STAGES, EXTRA, CHUNK], extra_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=128 // ROWS)
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(turn.index(group), count=1)
    return x_ring, weight_ring, extra_ring, full, free, turn


@gluon_jit
def load_chunks(
    x_desc,
    weight_desc,
    extra_desc,
    x_ring,
    weight_ring,
    extra_ring,
    full,
    free,
    row_tiles,
    blocks,
    CHUNKS: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_N: gl.constexpr,
    EXTRA: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
):
    """What the loading warp does."""
    BYTES: gl.constexpr = (128 + BLOCK_N + EXTRA) * CHUNK * x_desc.dtype.primitive_bitwidth // 8
    AHEAD: gl.constexpr = STAGES if STAGES < CHUNKS else CHUNKS
    row_tile, first, step = find_share(row_tiles)
    row = row_tile * 128
    for slot in gl.static_range(AHEAD):
        mbarrier.expect(full.index(slot), BYTES)
        place = [first * (BLOCK_N + EXTRA), slot * CHUNK]
        tma.async_copy_global_to_shared(weight_desc, place, full.index(slot), weight_ring.index(slot))
        if EXTRA > 0:
            place = [first * (BLOCK_N + EXTRA) + BLOCK_N, slot * CHUNK]
            tma.async_copy_global_to_shared(extra_desc, place, full.index(slot), extra_ring.index(slot))
    gdc_wait()
    filled = 0
    for block in range(first, blocks, step):
        column = block * (BLOCK_N + EXTRA)
        for chunk in range(CHUNKS):
            stage = filled % STAGES
            barrier = full.index(stage)
            missing = filled >= AHEAD
            k = chunk * CHUNK
            mbarrier.wait(free.index(stage), (filled // STAGES & 1) ^ 1)
            mbarrier.expect(barrier, BYTES, pred=missing)
            tma.async_copy_global_to_shared(x_desc, [row, k], barrier, x_ring.index(128 // ROWS * stage))
            if ROWS == 64:
                tma.async_copy_global_to_shared(x_desc, [row + 64, k], barrier, x_ring.index(2 * stage + 1))
            tma.async_copy_global_to_shared(weight_desc, [column, k], barrier, weight_ring.index(stage), missing)
            if EXTRA > 0:
                beside = [column + BLOCK_N, k]
                tma.async_copy_global_to_shared(extra_desc, beside, barrier, extra_ring.index(stage), missing)
            filled += 1


@gluon_jit
def multiply_tile(
    HALF: gl.constexpr,
    x_ring,
    weight_ring,
    extra_ring,
    full,
    free,
    turn,
    done,
    CHUNKS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    EXTRA: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
):
    """One warp group's part of its next tile -> ([ROWS, BLOCK_N], [ROWS, EXTRA] float32, chunks done so far)."""
    if ROWS == 128:  # the ring cannot tell a chunk from one a ring later: the other group must have come up to it
        mbarrier.wait(turn.index(HALF), (done // CHUNKS // 2 & 1) ^ (1 - HALF))
    K_STEP: gl.constexpr = 256 // x_ring.dtype.primitive_bitwidth  # of one instruction: 32 bytes
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, K_STEP])
    total = gl.zeros([ROWS, BLOCK_N], gl.float32, ACC)
    rest = total
    if EXTRA > 0:
        REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[4, 1], instr_shape=[16, EXTRA, K_STEP])
        rest = gl.zeros([ROWS, EXTRA], gl.float32, REST)
    for chunk in range(CHUNKS):
        stage = done % STAGES
        mbarrier.wait(full.index(stage), done // STAGES & 1)
        x = x_ring.index(2 * stage + HALF if ROWS == 64 else stage)
        total = warpgroup_mma(x, weight_ring.index(stage).permute((1, 0)), total, is_async=True)
        if EXTRA > 0:
            rest = warpgroup_mma(x, extra_ring.index(stage).permute((1, 0)), rest, is_async=True)
            total, rest = warpgroup_mma_wait(2, deps=(total, rest))
        else:
            total = warpgroup_mma_wait(1, deps=(total,))
        mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), count=1, pred=chunk > 0)
        done += 1
    if ROWS == 128:
        mbarrier.arrive(turn.index(1 - HALF), count=1)
    if EXTRA > 0:
        total, rest = warpgroup_mma_wait(0, deps=(total, rest))
    else:
        total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), count=1)
    return total, rest, done
