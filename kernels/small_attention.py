"""Attention of few queries to few keys, as between an action chunk and what it looks at, in one launch:

    out = softmax(K^-0.5 q k^T) v    over the keys that a query may see

Libraries leave most of a GPU idle there, and want copies before and behind. Heads are read where they lie: only the
elements of a head have to be side by side. B batch, Q queries, S keys, N heads of queries, M of keys, K elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton

QUERIES, KEYS = 16, 64  # of a tile
MOST_QUERIES, MOST_KEYS, MOST_ELEMENTS = 128, 512, 128
LOG2_E = 1.4426950408889634


def small_attention_reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor) -> None:
    """q and out [B, Q, N, K], k and v [B, S, M, K], N a multiple of M, mask bool [B, Q or 1, S]; in float32.

    Every query sees a key. Without a mask it sees all.
    """
    groups = q.shape[2] // k.shape[2]
    q, k, v = (part.float().transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
    out.copy_((scores.softmax(-1) @ v).transpose(1, 2))


@jit
def _small_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    mask_ptr,
    out_ptr,
    queries,
    keys,
    groups,
    scale,
    q_robot,
    q_token,
    q_head,
    k_robot,
    k_token,
    k_head,
    v_robot,
    v_token,
    v_head,
    mask_robot,
    mask_query,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1)
    robot = tl.program_id(2)
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    element = tl.arange(0, BLOCK)
    held = (query < queries)[:, None] & (element < WIDTH)[None, :]
    q_place = robot * q_robot + query[:, None] * q_token + head * q_head + element[None, :]
    q = tl.load(q_ptr + q_place, mask=held, other=0.0)
    k_base = k_ptr + robot * k_robot + (head // groups) * k_head
    v_base = v_ptr + robot * v_robot + (head // groups) * v_head
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, BLOCK), tl.float32)
    for start in range(0, keys, KEYS):
        key = start + tl.arange(0, KEYS)
        there = (key < keys)[:, None] & (element < WIDTH)[None, :]
        k = tl.load(k_base + key[:, None] * k_token + element[None, :], mask=there, other=0.0)
        v = tl.load(v_base + key[:, None] * v_token + element[None, :], mask=there, other=0.0)
        seen = (key < keys)[None, :] & (query < queries)[:, None]
        if MASKED:
            mask_place = robot * mask_robot + query[:, None] * mask_query + key[None, :]
            seen = seen & (tl.load(mask_ptr + mask_place, mask=seen, other=0) != 0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(highest - base)
        total = total * kept + tl.sum(weights, 1)
        out = out * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    place = ((robot * queries + query)[:, None] * tl.num_programs(1) + head) * WIDTH + element[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=held)


def small_attention_triton(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor) -> None:
    """Same contract as the reference, in one launch; out contiguous."""
    batch, queries, heads, width = q.shape
    masked = mask is not None
    mask_strides = (mask.stride(0), mask.stride(1) if mask.shape[1] > 1 else 0) if masked else (0, 0)
    _small_attention_kernel[(triton.cdiv(queries, QUERIES), heads, batch)](
        q,
        k,
        v,
        mask if masked else q,
        out,
        queries,
        k.shape[1],
        heads // k.shape[2],
        width**-0.5 * LOG2_E,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *mask_strides,
        WIDTH=width,
        BLOCK=max(16, triton.next_power_of_2(width)),
        QUERIES=QUERIES,
        KEYS=KEYS,
        MASKED=masked,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4,
    )


def small_attention_limits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *_: Any) -> str | None:
    """Why the Triton kernel is not for these sizes, or None."""
    if q.shape[1] > MOST_QUERIES or k.shape[1] > MOST_KEYS:
        return f"{q.shape[1]} queries, {k.shape[1]} keys; it is for at most {MOST_QUERIES} and {MOST_KEYS}"
    if q.shape[-1] > MOST_ELEMENTS:
        return f"heads of {q.shape[-1]}; it is for at most {MOST_ELEMENTS}"
    if any(part.stride(-1) != 1 for part in (q, k, v, q if mask is None else mask)):
        return "elements of a head, or keys of the mask, are not side by side"
    return None


SMALL_ATTENTION = Op(
    "small_attention", small_attention_reference, small_attention_triton, limits=small_attention_limits
)
