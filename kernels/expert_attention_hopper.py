"""The Hopper kernel of expert_attention.py, for one robot and at most 64 rows, in bfloat16, merge inside.

Split s of a head takes 64 keys of the prefix, which are loaded before the wait for the predecessor, and SUFFIX keys of
the chunk itself, which that predecessor wrote. When all splits of a head have stored their parts, each merges its share
of the rows. All thread blocks must be resident; the counters must be zero.
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
def _scores(queries, keys, visible, KEYS: gl.constexpr, scale):
    """[64, KEYS] float32 in powers of two, hidden keys at -1e30."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    scores = warpgroup_mma(queries, keys.permute((1, 0)), gl.zeros([64, KEYS], gl.float32, LAYOUT), is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    key = gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT))
    return gl.where((key < visible)[None, :], scores * scale, -1e30)


@gluon_jit
def _expert_attention_kernel(
    queries_desc,
    keys_desc,
    values_desc,
    suffix_keys_desc,
    suffix_values_desc,
    layer_row,
    length_ptr,
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    arrived_ptr,
    scale,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    SPLITS: gl.constexpr,
    KEYS: gl.constexpr,
    SUFFIX: gl.constexpr,
):
    gdc_launch_dependents()
    WIDE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HEAD_DIM, 16])
    STORE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    head = gl.program_id(0)
    split = gl.program_id(1)
    queries = gl.allocate_shared_memory(gl.bfloat16, [64, HEAD_DIM], queries_desc.layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [KEYS, HEAD_DIM], keys_desc.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [KEYS, HEAD_DIM], values_desc.layout)
    own_keys = gl.allocate_shared_memory(gl.bfloat16, [SUFFIX, HEAD_DIM], suffix_keys_desc.layout)
    own_values = gl.allocate_shared_memory(gl.bfloat16, [SUFFIX, HEAD_DIM], suffix_values_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [5, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(5):
        mbarrier.init(ready.index(index), count=1)
    mbarrier.expect(ready.index(0), 64 * HEAD_DIM * 2)
    for index in gl.static_range(2):
        mbarrier.expect(ready.index(1 + index), KEYS * HEAD_DIM * 2)
        mbarrier.expect(ready.index(3 + index), SUFFIX * HEAD_DIM * 2)
    tma.async_copy_global_to_shared(keys_desc, [layer_row + split * KEYS, 0], ready.index(1), keys)
    tma.async_copy_global_to_shared(values_desc, [layer_row + split * KEYS, 0], ready.index(2), values)
    first = gl.minimum(split * SUFFIX, ROWS - 1)  # splits beyond the chunk load finite rows that they then hide
    length = gl.load(length_ptr)
    own_row = layer_row + length + first
    gdc_wait()
    tma.async_copy_global_to_shared(queries_desc, [0, head * HEAD_DIM], ready.index(0), queries)
    tma.async_copy_global_to_shared(suffix_keys_desc, [own_row, 0], ready.index(3), own_keys)
    tma.async_copy_global_to_shared(suffix_values_desc, [own_row, 0], ready.index(4), own_values)

    mbarrier.wait(ready.index(1), 0)
    mbarrier.wait(ready.index(0), 0)
    scores = _scores(queries, keys, length - split * KEYS, KEYS, scale)
    mbarrier.wait(ready.index(3), 0)
    own_scores = _scores(queries, own_keys, ROWS - split * SUFFIX, SUFFIX, scale)
    own_maximum = gl.convert_layout(gl.max(own_scores, 1), gl.SliceLayout(1, WIDE))
    maximum = gl.maximum(gl.max(scores, 1), own_maximum)
    weights = gl.exp2(scores - maximum[:, None])
    own_weights = gl.exp2(own_scores - gl.convert_layout(maximum, gl.SliceLayout(1, own_scores.type.layout))[:, None])
    own_sum = gl.convert_layout(gl.sum(own_weights, 1), gl.SliceLayout(1, WIDE))
    total = gl.sum(weights, 1) + own_sum
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    part = gl.zeros([64, HEAD_DIM], gl.float32, OUT)
    mbarrier.wait(ready.index(2), 0)
    part = warpgroup_mma(gl.convert_layout(weights.to(gl.bfloat16), LEFT), values, part, is_async=True)
    mbarrier.wait(ready.index(4), 0)
    part = warpgroup_mma_wait(0, deps=(part,))
    part = warpgroup_mma(gl.convert_layout(own_weights.to(gl.bfloat16), LEFT), own_values, part, is_async=True)
    part = warpgroup_mma_wait(0, deps=(part,))

    base = (split * HEADS + head) * 64
    row = gl.arange(0, 64, gl.SliceLayout(1, WIDE))
    gl.store(maxima_ptr + base + row, maximum, mask=row < ROWS)
    gl.store(sums_ptr + base + row, total, mask=row < ROWS)
    row = gl.arange(0, 64, gl.SliceLayout(1, STORE))
    dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, STORE))
    stored = gl.convert_layout(part.to(gl.bfloat16), STORE)
    gl.store(parts_ptr + (base + row[:, None]) * HEAD_DIM + dim[None, :], stored, mask=(row < ROWS)[:, None])
    wait_for_arrivals(arrived_ptr + head, SPLITS)
    _merge_share(parts_ptr, maxima_ptr, sums_ptr, out_ptr, head, split, ROWS, HEADS, HEAD_DIM, SPLITS)


@gluon_jit
def _merge_share(
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    head,
    split,
    ROWS: gl.constexpr,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    SPLITS: gl.constexpr,
):
    """Merges this split's share of a head's rows, four rows at a time (one per warp); all loads go out together."""
    PADDED: gl.constexpr = 16 if SPLITS <= 16 else 32
    PARTS: gl.constexpr = gl.BlockedLayout([PADDED, 1, 8], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    FACTORS: gl.constexpr = gl.SliceLayout(2, PARTS)
    TURNS: gl.constexpr = (ROWS + 4 * SPLITS - 1) // (4 * SPLITS)
    for turn in gl.static_range(TURNS):
        row = (split * TURNS + turn) * 4 + gl.arange(0, 4, gl.SliceLayout(0, FACTORS))
        index = gl.arange(0, PADDED, gl.SliceLayout(1, FACTORS))
        dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, gl.SliceLayout(1, PARTS)))
        place = (index[:, None] * HEADS + head) * 64 + row[None, :]
        held = (index < SPLITS)[:, None] & (row < ROWS)[None, :]
        part_ptr = parts_ptr + gl.expand_dims(place, 2) * HEAD_DIM + dim[None, None, :]
        maxima = gl.load(maxima_ptr + place, mask=held, other=-1e30, cache_modifier=".cg")
        sums = gl.load(sums_ptr + place, mask=held, other=1.0, cache_modifier=".cg")
        parts = gl.load(part_ptr, mask=gl.expand_dims(held, 2), other=0.0, cache_modifier=".cg")
        weights = gl.exp2(maxima - gl.max(maxima, 0)[None, :])
        weights = weights / gl.sum(weights * sums, 0)[None, :]
        merged = gl.sum(parts.to(gl.float32) * gl.expand_dims(weights, 2), 0)  # [4, HEAD_DIM]
        MERGED: gl.constexpr = gl.SliceLayout(0, PARTS)
        row = (split * TURNS + turn) * 4 + gl.arange(0, 4, gl.SliceLayout(1, MERGED))
        dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, MERGED))
        out = out_ptr + row[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + dim[None, :]
        gl.store(out, merged.to(gl.bfloat16), mask=(row < ROWS)[:, None])


def suffix_tile(rows: int, splits: int) -> int:
    """Keys of the chunk itself that one split takes: 16 where the splits suffice, else more."""
    tile = 16
    while tile * splits < rows:
        tile *= 2
    return tile


def expert_attention_hopper(
    queries: Any,
    keys: Any,
    values: Any,
    suffix_keys: Any,
    suffix_values: Any,
    layer_row: int,
    prefix_length: Tensor,
    workspace: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    arrived: Tensor,
) -> None:
    """As `expert_attention_triton`, in one launch. The five descriptors: queries [R, N K] in blocks [64, K]; keys and
    values [L C, K] in blocks [64, K] and again in blocks [suffix_tile, K].

    workspace: parts bfloat16 [S, N, 64, K], maxima and sums float32 [S, N, 64]. arrived int32 [N], zero, used once.
    """
    parts, maxima, sums = workspace
    splits, heads, _, head_dim = parts.shape
    _expert_attention_kernel[(heads, splits)](
        queries,
        keys,
        values,
        suffix_keys,
        suffix_values,
        layer_row,
        prefix_length,
        parts,
        maxima,
        sums,
        out,
        arrived,
        LOG2_E / math.sqrt(head_dim),
        ROWS=len(out),
        HEADS=heads,
        HEAD_DIM=head_dim,
        SPLITS=splits,
        KEYS=keys.block_shape[0],
        SUFFIX=suffix_keys.block_shape[0],
        launch_pdl=True,
    )
