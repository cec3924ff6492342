"""The Hopper kernel of expert_attention.py, for one robot and at most 64 rows, in bfloat16, merge inside.

Every thread block takes 64 keys of one head: the last split the chunk's own keys, the others the prefix, which they
load before the wait for the predecessor. When all splits of a head have stored their parts, each merges its share of
the rows. All thread blocks must be resident; the counters must be zero.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from phyai_kernels.expert_attention import LOG2_E
from phyai_kernels.hopper import (
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon_jit,
    mbarrier,
    tma,
    wait_for_arrivals,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon_jit
def _expert_attention_kernel(
    queries_desc,
    keys_desc,
    values_desc,
    layer_row,
    length_ptr,
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    arrived_ptr,
    scale,
    LEAD: gl.constexpr,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    SPLITS: gl.constexpr,
    BLOCK: gl.constexpr,
    REST: gl.constexpr,
    KEYS: gl.constexpr,
):
    gdc_launch_dependents()
    ACC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HEAD_DIM, 16])
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    head = gl.program_id(0)
    split = gl.program_id(1)
    queries = gl.allocate_shared_memory(gl.bfloat16, [64, HEAD_DIM], queries_desc.layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [KEYS, HEAD_DIM], keys_desc.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [KEYS, HEAD_DIM], values_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(3):
        mbarrier.init(ready.index(index), count=1)
    mbarrier.expect(ready.index(0), 64 * HEAD_DIM * 2)
    mbarrier.expect(ready.index(1), KEYS * HEAD_DIM * 2)
    mbarrier.expect(ready.index(2), KEYS * HEAD_DIM * 2)
    early = split < SPLITS - 1
    tma.async_copy_global_to_shared(keys_desc, [layer_row + split * KEYS, 0], ready.index(1), keys, pred=early)
    tma.async_copy_global_to_shared(values_desc, [layer_row + split * KEYS, 0], ready.index(2), values, pred=early)
    length = gl.load(length_ptr)
    own = gl.arange(0, 64, gl.SliceLayout(1, ACC))
    visible = gl.where(early, length - split * KEYS, gl.where(own < LEAD, LEAD, ROWS))  # keys of this split, per row
    late = split == SPLITS - 1
    gdc_wait()
    tma.async_copy_global_to_shared(queries_desc, [0, head * HEAD_DIM], ready.index(0), queries)
    tma.async_copy_global_to_shared(keys_desc, [layer_row + length, 0], ready.index(1), keys, pred=late)
    tma.async_copy_global_to_shared(values_desc, [layer_row + length, 0], ready.index(2), values, pred=late)

    scores = gl.zeros([64, KEYS], gl.float32, ACC)
    mbarrier.wait(ready.index(1), 0)
    mbarrier.wait(ready.index(0), 0)
    scores = warpgroup_mma(queries, keys.permute((1, 0)), scores, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    key = gl.arange(0, KEYS, gl.SliceLayout(0, ACC))
    scores = gl.where(key[None, :] < visible[:, None], scores * scale, -1e30)
    maximum = gl.max(scores, 1)
    weights = gl.exp2(scores - maximum[:, None])
    total = gl.sum(weights, 1)
    weights = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(0, OUT, 2))
    part = gl.zeros([64, HEAD_DIM], gl.float32, OUT)
    mbarrier.wait(ready.index(2), 0)
    part = warpgroup_mma(weights, values, part, is_async=True)
    part = warpgroup_mma_wait(0, deps=(part,))

    base = (split * HEADS + head) * 64
    row = gl.arange(0, 64, gl.SliceLayout(1, ACC))
    gl.store(maxima_ptr + base + row, maximum, mask=row < ROWS)
    gl.store(sums_ptr + base + row, total, mask=row < ROWS)
    row = gl.arange(0, 64, gl.SliceLayout(1, STORE))
    dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, STORE))
    stored = gl.convert_layout(part.to(gl.bfloat16), STORE)
    gl.store(parts_ptr + (base + row[:, None]) * HEAD_DIM + dim[None, :], stored, mask=(row < ROWS)[:, None])
    wait_for_arrivals(arrived_ptr + head, SPLITS)
    TURNS: gl.constexpr = (ROWS + 4 * SPLITS - 1) // (4 * SPLITS)
    for turn in gl.static_range(TURNS):
        first = (split * TURNS + turn) * 4
        if first < ROWS:
            _merge_rows(
                parts_ptr, maxima_ptr, sums_ptr, out_ptr, head, first, ROWS, HEADS, HEAD_DIM, SPLITS, BLOCK, REST
            )


@gluon_jit
def _merge_rows(
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    head,
    first,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    SPLITS: gl.constexpr,
    BLOCK: gl.constexpr,
    REST: gl.constexpr,
):
    """Merges four rows of a head, one per warp: a block of splits and the rest, all loads before any sum."""
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, OUT)
    maxima, sums, parts = _load_parts(
        parts_ptr, maxima_ptr, sums_ptr, 0, head, first, BLOCK, ROWS, HEADS, HEAD_DIM, SPLITS
    )
    maxima_rest, sums_rest, parts_rest = _load_parts(
        parts_ptr, maxima_ptr, sums_ptr, BLOCK, head, first, REST, ROWS, HEADS, HEAD_DIM, SPLITS
    )
    highest = gl.maximum(
        gl.convert_layout(gl.max(maxima, 0), ROW),
        gl.convert_layout(gl.max(maxima_rest, 0), ROW),
    )
    merged, weight = _weigh(maxima, sums, parts, highest, OUT)
    merged_rest, weight_rest = _weigh(maxima_rest, sums_rest, parts_rest, highest, OUT)
    merged = (merged + merged_rest) / (weight + weight_rest)[:, None]
    row = first + gl.arange(0, 4, ROW)
    dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, OUT))
    out = out_ptr + row[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + dim[None, :]
    gl.store(out, merged.to(gl.bfloat16), mask=(row < ROWS)[:, None])


@gluon_jit
def _load_parts(
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    start,
    head,
    first,
    COUNT: gl.constexpr,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    SPLITS: gl.constexpr,
):
    """Splits start .. start + COUNT - 1 of four rows: maxima and sums [COUNT, 4], parts [COUNT, 4, HEAD_DIM]."""
    PARTS: gl.constexpr = gl.BlockedLayout([COUNT, 1, 8], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    STATS: gl.constexpr = gl.SliceLayout(2, PARTS)
    split = start + gl.arange(0, COUNT, gl.SliceLayout(1, STATS))
    row = first + gl.arange(0, 4, gl.SliceLayout(0, STATS))
    dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, gl.SliceLayout(1, PARTS)))
    place = (split[:, None] * HEADS + head) * 64 + row[None, :]
    held = (split < SPLITS)[:, None] & (row < ROWS)[None, :]
    maxima = gl.load(maxima_ptr + place, mask=held, other=-1e30, cache_modifier=".cg")
    sums = gl.load(sums_ptr + place, mask=held, other=0.0, cache_modifier=".cg")
    stored = parts_ptr + gl.expand_dims(place, 2) * HEAD_DIM + dim[None, None, :]
    parts = gl.load(stored, mask=gl.expand_dims(held, 2), other=0.0, cache_modifier=".cg")
    return maxima, sums, parts


@gluon_jit
def _weigh(maxima, sums, parts, highest, LAYOUT: gl.constexpr):
    """Parts brought to a common maximum: their sum [4, HEAD_DIM] and the sum of their weights [4]."""
    factor = gl.exp2(maxima - gl.convert_layout(highest, gl.SliceLayout(0, maxima.type.layout))[None, :])
    total = gl.sum(parts.to(gl.float32) * gl.expand_dims(factor, 2), 0)
    weight = gl.sum(sums * factor, 0)
    return gl.convert_layout(total, LAYOUT), gl.convert_layout(weight, gl.SliceLayout(1, LAYOUT))


def split_count(prefix_capacity: int, tile: int) -> int:
    """Splits of a head: the prefix in tiles, and one for the chunk itself."""
    return -(-prefix_capacity // tile) + 1


def expert_attention_hopper(
    queries: Any,
    keys: Any,
    values: Any,
    layer_row: int,
    prefix_length: Tensor,
    workspace: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    arrived: Tensor,
    lead: int = 0,
) -> None:
    """As `expert_attention_triton`, in one launch. Descriptors: queries [R, N K], keys and values [L C, K], all in
    blocks [64, K]; rows behind a layer's last key are read, and must be finite.

    workspace: parts bfloat16 [S, N, 64, K], maxima and sums float32 [S, N, 64]. arrived int32 [N], zero, used once.
    """
    parts, maxima, sums = workspace
    splits, heads, _, head_dim = parts.shape
    block = 1 << (splits.bit_length() - 1)  # largest power of two
    rest = 1 << max(0, splits - block - 1).bit_length()
    _expert_attention_kernel[(heads, splits)](
        queries,
        keys,
        values,
        layer_row,
        prefix_length,
        parts,
        maxima,
        sums,
        out,
        arrived,
        LOG2_E / math.sqrt(head_dim),
        LEAD=lead,
        ROWS=len(out),
        HEADS=heads,
        HEAD_DIM=head_dim,
        SPLITS=splits,
        BLOCK=block,
        REST=rest,
        KEYS=keys.block_shape[0],
        launch_pdl=True,
    )
