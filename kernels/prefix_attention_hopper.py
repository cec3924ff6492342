"""The Hopper kernel of prefix_attention.py: one warp loads, two warp groups take turns at tiles of 64 keys.

Both warp groups work on the same 64 rows, so while one is busy with its softmax the other keeps the tensor cores busy,
and a prefix of a thousand rows still fills the device. At the end the second hands its sums to the first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phyai_kernels.expert_attention import LOG2_E
from phyai_kernels.hopper import (
    block_barrier,
    describe,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon_jit,
    mbarrier,
    refuse,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

TILE = 64
STAGES = 3


@gluon_jit
def _load_tiles(
    queries_desc,
    keys_desc,
    values_desc,
    first_row,
    first_key,
    tiles,
    queries,
    keys,
    values,
    ready,
    full,
    free,
    STAGES: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    mbarrier.expect(ready.index(0), 64 * HEAD_DIM * 2)
    tma.async_copy_global_to_shared(queries_desc, [first_row, 0], ready.index(0), queries)
    for tile in range(tiles):
        stage = tile % STAGES
        row = first_key + tile * 64
        mbarrier.wait(free.index(stage), (tile // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), 2 * 64 * HEAD_DIM * 2)
        tma.async_copy_global_to_shared(keys_desc, [row, 0], full.index(stage), keys.index(stage))
        tma.async_copy_global_to_shared(values_desc, [row, 0], full.index(stage), values.index(stage))


@gluon_jit
def _attend_tiles(
    TURN: gl.constexpr,
    tiles,
    length,
    scale,
    queries,
    keys,
    values,
    ready,
    full,
    free,
    stats,
    out_ptr,
    first_row,
    rows,
    STAGES: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HEAD_DIM, 16])
    ACC_ROW: gl.constexpr = gl.SliceLayout(1, ACC)
    OUT_ROW: gl.constexpr = gl.SliceLayout(1, OUT)
    maximum = gl.full([64], -1e30, gl.float32, ACC_ROW)
    total = gl.zeros([64], gl.float32, ACC_ROW)
    part = gl.zeros([64, HEAD_DIM], gl.float32, OUT)
    mbarrier.wait(ready.index(0), 0)
    for tile in range(TURN, tiles, 2):
        stage = tile % STAGES
        mbarrier.wait(full.index(stage), tile // STAGES & 1)
        scores = gl.zeros([64, 64], gl.float32, ACC)
        scores = warpgroup_mma(queries, keys.index(stage).permute((1, 0)), scores, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        key = tile * 64 + gl.arange(0, 64, gl.SliceLayout(0, ACC))
        scores = gl.where((key < length)[None, :], scores * scale, -1e30)
        highest = gl.maximum(maximum, gl.max(scores, 1))
        weights = gl.exp2(scores - highest[:, None])
        shrink = gl.exp2(maximum - highest)
        total = total * shrink + gl.sum(weights, 1)
        maximum = highest
        part = part * gl.convert_layout(shrink, OUT_ROW)[:, None]
        weights = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(0, OUT, 2))
        part = warpgroup_mma(weights, values.index(stage), part, is_async=True)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(free.index(stage), count=1)

    # Every tile has been used: the keys' memory carries the second warp group's part to the first.
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    handed = keys._reinterpret(gl.float32, [64, HEAD_DIM], PLAIN)
    mbarrier.arrive(ready.index(1), count=1)
    mbarrier.wait(ready.index(1), 0)
    if TURN == 1:
        handed.store(part)
        stats.index(0).store(maximum)
        stats.index(1).store(total)
        block_barrier()
        mbarrier.arrive(ready.index(2), count=1)
    else:
        mbarrier.wait(ready.index(2), 0)
        other = stats.index(0).load(ACC_ROW)
        highest = gl.maximum(maximum, other)
        own_factor = gl.exp2(maximum - highest)
        factor = gl.exp2(other - highest)
        total = total * own_factor + stats.index(1).load(ACC_ROW) * factor
        own_factor = gl.convert_layout(own_factor / total, OUT_ROW)
        factor = gl.convert_layout(factor / total, OUT_ROW)
        part = part * own_factor[:, None] + handed.load(OUT) * factor[:, None]
        row = first_row + gl.arange(0, 64, OUT_ROW)
        dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, OUT))
        out = out_ptr + row[:, None] * HEAD_DIM + dim[None, :]
        gl.store(out, part.to(gl.bfloat16), mask=(row < rows)[:, None])


@gluon_jit
def _prefix_attention_kernel(
    queries_desc,
    keys_desc,
    values_desc,
    robot_rows,
    length_ptr,
    out_ptr,
    rows,
    scale,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    gdc_launch_dependents()
    robot = gl.program_id(1)
    first_row = robot * rows + gl.program_id(0) * 64
    end_row = (robot + 1) * rows
    first_key = robot * robot_rows
    length = gl.load(length_ptr + robot)  # older than the predecessor
    tiles = (length + 63) // 64
    queries = gl.allocate_shared_memory(gl.bfloat16, [64, HEAD_DIM], queries_desc.layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, HEAD_DIM], keys_desc.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, HEAD_DIM], values_desc.layout)
    stats = gl.allocate_shared_memory(gl.float32, [2, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())  # queries, tiles used, part handed
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(ready.index(1), count=2)
    mbarrier.init(ready.index(2), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    gdc_wait()
    # fmt: off
    gl.warp_specialize(  # constants stay constants only in tuples written here
        [
            (_attend_tiles, (
                0, tiles, length, scale, queries, keys, values, ready, full, free, stats,
                out_ptr, first_row, end_row, STAGES, HEAD_DIM,
            )),
            (_attend_tiles, (
                1, tiles, length, scale, queries, keys, values, ready, full, free, stats,
                out_ptr, first_row, end_row, STAGES, HEAD_DIM,
            )),
            (_load_tiles, (
                queries_desc, keys_desc, values_desc, first_row, first_key, tiles, queries, keys, values,
                ready, full, free, STAGES, HEAD_DIM,
            )),
        ],
        [4, 1],
        [232, 40],
    )
    # fmt: on


def refuse_attention(device: torch.device, queries: Tensor, keys: Tensor, *_: Tensor) -> str | None:
    """Why this kernel cannot take the call, or None."""
    if queries.dtype != torch.bfloat16 or keys.shape[-1] != 256:
        return f"takes bfloat16 heads of 256, not {queries.dtype} heads of {keys.shape[-1]}"
    if keys.stride(-2) != keys.shape[-1] or keys.stride(0) % keys.shape[-1]:
        return "needs rows of keys and values without gaps"
    return refuse(device)


def prefix_attention_hopper(queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor) -> None:
    """Same contract as `prefix_attention_reference`; keys and values may be one layer of a larger buffer."""
    batch, capacity, head_dim = keys.shape
    rows = out.shape[1] * out.shape[2] // head_dim
    robot_rows = keys.stride(0) // head_dim
    shape = ((batch - 1) * robot_rows + capacity, head_dim)
    flat = [cache.as_strided(shape, (head_dim, 1)) for cache in (keys, values)]
    _prefix_attention_kernel[(-(-rows // TILE), batch)](
        describe(queries.view(-1, head_dim), TILE, head_dim),
        *(describe(cache, TILE, head_dim) for cache in flat),
        robot_rows,
        prefix_length,
        out,
        rows,
        LOG2_E / math.sqrt(head_dim),
        HEAD_DIM=head_dim,
        STAGES=STAGES,
        num_warps=4,
        launch_pdl=True,
    )
