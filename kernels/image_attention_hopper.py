"""The Hopper kernel of image_attention.py: 64 rows of one head against all keys of the image at once.

Heads of 72 are no size for tensor cores; they are cut into 64 and 16 columns, of which the last 8 belong to the next
head: those of q are set to zero, those of the result are left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from phyai_kernels.expert_attention import LOG2_E
from phyai_kernels.hopper import (
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

KEYS = 256
WIDE, NARROW = 64, 16


@gluon_jit
def _load_rows(wide_desc, narrow_desc, row, column, ready, KEYS: gl.constexpr):
    """Asks for KEYS rows of one head -> its first 64 columns and the 16 after them."""
    wide = gl.allocate_shared_memory(gl.bfloat16, [KEYS, 64], wide_desc.layout)
    narrow = gl.allocate_shared_memory(gl.bfloat16, [KEYS, 16], narrow_desc.layout)
    mbarrier.expect(ready, KEYS * 80 * 2)
    tma.async_copy_global_to_shared(wide_desc, [row, column], ready, wide)
    tma.async_copy_global_to_shared(narrow_desc, [row, column + 64], ready, narrow)
    return wide, narrow


@gluon_jit
def _image_attention_kernel(
    wide_desc,
    narrow_desc,
    qkv_ptr,
    out_ptr,
    tokens,
    scale,
    HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    KEYS: gl.constexpr,
):
    WIDTH: gl.constexpr = HEADS * HEAD_DIM
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    REST: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 16, 16])
    Q: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    gdc_launch_dependents()
    head = gl.program_id(1)
    first = gl.program_id(2) * tokens
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(ready.index(1), count=1)
    gdc_wait()
    column = head * HEAD_DIM
    keys, more_keys = _load_rows(wide_desc, narrow_desc, first, WIDTH + column, ready.index(0), KEYS)
    values, more_values = _load_rows(wide_desc, narrow_desc, first, 2 * WIDTH + column, ready.index(1), KEYS)
    row = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, Q))
    inside = (row < tokens)[:, None]
    q_row = qkv_ptr + (first + row)[:, None] * (3 * WIDTH) + column
    dim = gl.arange(0, 64, gl.SliceLayout(0, Q))
    q = gl.load(q_row + dim[None, :], mask=inside, other=0.0)
    dim = 64 + gl.arange(0, 16, gl.SliceLayout(0, Q))
    more_q = gl.load(q_row + dim[None, :], mask=inside & (dim < HEAD_DIM)[None, :], other=0.0)

    scores = gl.zeros([64, KEYS], gl.float32, SCORES)
    mbarrier.wait(ready.index(0), 0)
    scores = warpgroup_mma(q, keys.permute((1, 0)), scores, is_async=True)
    scores = warpgroup_mma(more_q, more_keys.permute((1, 0)), scores, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    held = gl.arange(0, KEYS, gl.SliceLayout(0, SCORES)) < tokens
    scores = gl.where(held[None, :], scores * scale, -1e30)
    weights = gl.exp2(scores - gl.max(scores, 1)[:, None])
    factor = 1.0 / gl.sum(weights, 1)
    weights = weights.to(gl.bfloat16)

    part = gl.zeros([64, 64], gl.float32, PART)
    rest = gl.zeros([64, 16], gl.float32, REST)
    mbarrier.wait(ready.index(1), 0)
    part = warpgroup_mma(gl.convert_layout(weights, gl.DotOperandLayout(0, PART, 2)), values, part, is_async=True)
    rest = warpgroup_mma(gl.convert_layout(weights, gl.DotOperandLayout(0, REST, 2)), more_values, rest, is_async=True)
    part, rest = warpgroup_mma_wait(0, deps=(part, rest))
    _store(part, factor, out_ptr, first, tokens, column, 0, WIDTH, HEAD_DIM)
    _store(rest, factor, out_ptr, first, tokens, column, 64, WIDTH, HEAD_DIM)


@gluon_jit
def _store(
    part, factor, out_ptr, first, tokens, column, START: gl.constexpr, WIDTH: gl.constexpr, HEAD_DIM: gl.constexpr
):
    COLUMNS: gl.constexpr = part.type.shape[1]
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    part = part * gl.convert_layout(factor, gl.SliceLayout(1, part.type.layout))[:, None]
    part = gl.convert_layout(part.to(gl.bfloat16), OUT)
    row = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, OUT))
    dim = START + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    place = out_ptr + (first + row)[:, None] * WIDTH + column + dim[None, :]
    gl.store(place, part, mask=(row < tokens)[:, None] & (dim < HEAD_DIM)[None, :])


def refuse_image_attention(device: torch.device, qkv: Tensor, images: int, heads: int, out: Tensor) -> str | None:
    """Why this kernel cannot take the call, or None."""
    tokens, head_dim = len(qkv) // images, out.shape[1] // heads
    if qkv.dtype != torch.bfloat16 or not WIDE < head_dim <= WIDE + NARROW or head_dim % 8:
        return f"takes bfloat16 heads of 72 or 80, not {qkv.dtype} heads of {head_dim}"
    if tokens > KEYS:
        return f"takes at most {KEYS} tokens an image, not {tokens}"
    return refuse(device)


def image_attention_hopper(qkv: Tensor, images: int, heads: int, out: Tensor) -> None:
    """Same contract as `image_attention_reference`."""
    tokens, head_dim = len(out) // images, out.shape[1] // heads
    _image_attention_kernel[(-(-tokens // 64), heads, images)](
        describe(qkv, KEYS, WIDE),
        describe(qkv, KEYS, NARROW),
        qkv,
        out,
        tokens,
        LOG2_E / math.sqrt(head_dim),
        HEADS=heads,
        HEAD_DIM=head_dim,
        KEYS=KEYS,
        num_warps=4,
        launch_pdl=True,
    )
