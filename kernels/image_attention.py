"""Attention of every image over its own tokens, straight from the product that made q, k and v:

    out[b, t, n] = softmax(q[b, t, n] k[b, :, n]^T / sqrt(K)) v[b, :, n]

Heads of a vision tower are narrow (72 for SigLIP) and images short, so the pass is bound by launches and copies: this
one reads the heads where they are and writes what the output product reads.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from phyai_kernels.expert_attention import LOG2_E
from phyai_kernels.image_attention_hopper import image_attention_hopper, refuse_image_attention
from phyai_kernels.op import Candidate, Op, jit, tl, triton

ROWS = 64
KEYS = 64


def image_attention_reference(qkv: Tensor, images: int, heads: int, out: Tensor) -> None:
    """qkv [B T, 3 N K] (q, k, v) for B images -> out [B T, N K]."""
    parts = qkv.float().view(images, -1, 3, heads, out.shape[1] // heads).permute(2, 0, 3, 1, 4)
    q, k, v = parts.unbind(0)  # each [B, N, T, K]
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    out.copy_((weights @ v).transpose(1, 2).reshape(out.shape))


@jit
def _image_attention_kernel(
    qkv_ptr,
    out_ptr,
    tokens,
    scale,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    WIDTH: tl.constexpr = HEADS * HEAD_DIM
    head = tl.program_id(1)
    first = tl.program_id(2) * tokens
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED)
    known = dim < HEAD_DIM
    inside = (row < tokens)[:, None] & known[None, :]
    q_ptr = qkv_ptr + (first + row)[:, None] * (3 * WIDTH) + head * HEAD_DIM + dim[None, :]
    q = tl.load(q_ptr, mask=inside, other=0.0)
    maximum = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, PADDED), tl.float32)
    for start in range(0, tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        held = key < tokens
        place = (first + key) * (3 * WIDTH) + WIDTH + head * HEAD_DIM
        k = tl.load(qkv_ptr + place[None, :] + dim[:, None], mask=held[None, :] & known[:, None], other=0.0)
        v = tl.load(qkv_ptr + WIDTH + place[:, None] + dim[None, :], mask=held[:, None] & known[None, :], other=0.0)
        scores = tl.where(held[None, :], tl.dot(q, k, input_precision="ieee") * scale, -1e30)
        highest = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(maximum - highest)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        maximum = highest
    place = (first + row)[:, None] * WIDTH + head * HEAD_DIM + dim[None, :]
    tl.store(out_ptr + place, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def image_attention_triton(qkv: Tensor, images: int, heads: int, out: Tensor) -> None:
    """Same contract as the reference, in one launch."""
    tokens, head_dim = len(out) // images, out.shape[1] // heads
    _image_attention_kernel[(triton.cdiv(tokens, ROWS), heads, images)](
        qkv,
        out,
        tokens,
        LOG2_E / math.sqrt(head_dim),
        HEADS=heads,
        HEAD_DIM=head_dim,
        PADDED=max(16, triton.next_power_of_2(head_dim)),
        ROWS=ROWS,
        KEYS=KEYS,
        num_warps=4,
        num_stages=2,
    )


def image_attention_sdpa(qkv: Tensor, images: int, heads: int, out: Tensor) -> None:
    """Same contract as the reference, by torch; its result is copied to `out`."""
    q, k, v = qkv.view(images, -1, 3, heads, out.shape[1] // heads).permute(2, 0, 3, 1, 4).unbind(0)
    out.copy_(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(out.shape))


SDPA = Candidate("sdpa", image_attention_sdpa, lambda device, *_: None)
HOPPER = Candidate("hopper", image_attention_hopper, refuse_image_attention)
IMAGE_ATTENTION = Op(
    "image_attention", image_attention_reference, image_attention_triton, first=(HOPPER,), others=(SDPA,)
)
