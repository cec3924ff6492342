"""Attention of a whole prefix over itself, every row seeing the same keys:

    out[b, t, n] = softmax(q[b, t, n] k^T / sqrt(K)) v    over keys 0 .. P_b - 1

All query heads share one key/value head, so the heads of a token are just more rows. P_b is read on the device: the
loop over keys ends there, padding costs nothing. Rows from P_b on come out finite and mean nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from phyai_kernels.expert_attention import LOG2_E, expert_attention_reference
from phyai_kernels.flashinfer_attention import attend_flashinfer, refuse_flashinfer
from phyai_kernels.op import Candidate, Op, jit, tl, triton
from phyai_kernels.prefix_attention_hopper import prefix_attention_hopper, refuse_attention


def prefix_attention_reference(
    queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor
) -> None:
    """queries, out [B, T, N K], keys, values [B, C, K], prefix_length [B] int32."""
    tokens = queries.shape[1]
    flat = torch.empty_like(out).flatten(0, 1)
    expert_attention_reference(queries.flatten(0, 1), keys, values, prefix_length - tokens, flat)
    out.copy_(flat.view(out.shape))


@jit
def _prefix_attention_kernel(
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    length_ptr,
    out_ptr,
    rows,
    scale,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    robot = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # token N + head
    inside = row < rows
    dim = tl.arange(0, HEAD_DIM)
    place = (robot * rows + row)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(queries_ptr + place, mask=inside[:, None], other=0.0)
    length = tl.load(length_ptr + robot)
    maximum = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        token = robot * robot_stride + key * HEAD_DIM
        held = key < length
        k = tl.load(keys_ptr + token[None, :] + dim[:, None], mask=held[None, :], other=0.0)
        v = tl.load(values_ptr + token[:, None] + dim[None, :], mask=held[:, None], other=0.0)
        scores = tl.where(held[None, :], tl.dot(q, k, input_precision="ieee") * scale, -1e30)
        highest = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(maximum - highest)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        maximum = highest
    tl.store(out_ptr + place, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside[:, None])


def prefix_attention_triton(queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor) -> None:
    """Same contract as the reference, in one launch; every P_b at least 1."""
    batch, tokens, width = out.shape
    head_dim = keys.shape[-1]
    heads = width // head_dim
    block = 64 if batch * tokens * heads <= 64 * 264 else 128
    _prefix_attention_kernel[(triton.cdiv(tokens * heads, block), batch)](
        queries,
        keys,
        values,
        keys.stride(0),
        prefix_length,
        out,
        tokens * heads,
        LOG2_E / math.sqrt(head_dim),
        HEAD_DIM=head_dim,
        ROWS=block,
        KEYS=64 if keys.element_size() == 2 else 32,
        num_warps=4 if block == 64 else 8,
        num_stages=2,
    )


def prefix_attention_sdpa(queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor) -> None:
    """Same contract as the reference, by torch; the mask over the keys costs one more launch."""
    batch, tokens, width = out.shape
    head_dim = keys.shape[-1]
    rows = queries.view(batch, 1, -1, head_dim)
    visible = torch.arange(tokens, device=keys.device) < prefix_length[:, None]
    k, v = keys[:, None, :tokens], values[:, None, :tokens]
    result = scaled_dot_product_attention(rows, k, v, attn_mask=visible[:, None, None])
    out.copy_(result.view(batch, tokens, width))


def _flashinfer(backend: str) -> Candidate:
    def run(queries: Tensor, keys: Tensor, values: Tensor, prefix_length: Tensor, out: Tensor) -> None:
        tokens = out.shape[1]
        attend_flashinfer(backend, queries, keys[:, :tokens], values[:, :tokens], prefix_length, out)

    def refuse(device: torch.device, queries: Tensor, keys: Tensor, *_: Tensor) -> str | None:
        return refuse_flashinfer(backend, device, queries, keys)

    return Candidate(f"flashinfer {backend}", run, refuse)


SDPA = Candidate("sdpa", prefix_attention_sdpa, lambda device, *_: None)
HOPPER = Candidate("hopper", prefix_attention_hopper, refuse_attention)
PREFIX_ATTENTION = Op(
    "prefix_attention",
    prefix_attention_reference,
    prefix_attention_triton,
    first=(HOPPER,),
    others=(SDPA, _flashinfer("fa2"), _flashinfer("fa3")),
)
