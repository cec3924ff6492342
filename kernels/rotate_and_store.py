"""What follows a prefix's QKV product: rotate q, rotate k into the KV buffer, copy v there.

Half-split rotary embedding: element i of a head is paired with element i + K / 2. Row t of robot b has position t: a
prefix is packed, its padding comes last. Rows from P_b on are written too and must be masked by whoever reads them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl


def rotate_and_store_reference(qkv: Tensor, rotary: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> None:
    """qkv [B, T, (N + 2) K] -> queries [B, T, N K], rows 0 .. T - 1 of keys and values [B, C, K].

    rotary [2, positions, K / 2] float32: cosines and sines. N may be 0: then only keys and values are made.
    """
    batch, tokens, _ = qkv.shape
    heads = qkv.view(batch, tokens, -1, keys.shape[-1])
    first, second = heads[:, :, :-1].float().chunk(2, dim=-1)
    cos, sin = rotary[:, :tokens].unsqueeze(2)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(qkv.dtype)
    queries.copy_(turned[:, :, :-1].flatten(2))
    keys[:, :tokens] = turned[:, :, -1]
    values[:, :tokens] = heads[:, :, -1]


@jit
def _rotate_and_store_kernel(
    qkv_ptr,
    rotary_ptr,
    sin_offset,
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1)
    robot = tl.program_id(2)
    pair = tl.arange(0, HALF)
    row = robot * tl.num_programs(0) + token
    source = qkv_ptr + (row * (HEADS + 2) + head) * (2 * HALF) + pair
    first = tl.load(source)
    second = tl.load(source + HALF)
    stored = robot * robot_stride + token * 2 * HALF + pair
    if head == HEADS + 1:
        tl.store(values_ptr + stored, first)
        tl.store(values_ptr + stored + HALF, second)
    else:
        angle = rotary_ptr + token * HALF + pair
        cos = tl.load(angle)
        sin = tl.load(angle + sin_offset)
        turned = (first.to(tl.float32) * cos - second.to(tl.float32) * sin).to(first.dtype)
        turned_second = (second.to(tl.float32) * cos + first.to(tl.float32) * sin).to(first.dtype)
        if head == HEADS:
            tl.store(keys_ptr + stored, turned)
            tl.store(keys_ptr + stored + HALF, turned_second)
        else:
            query = queries_ptr + (row * HEADS + head) * (2 * HALF) + pair
            tl.store(query, turned)
            tl.store(query + HALF, turned_second)


def rotate_and_store_triton(qkv: Tensor, rotary: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> None:
    """Same contract as the reference, in one launch; K a power of two."""
    batch, tokens, width = qkv.shape
    head_dim = keys.shape[-1]
    heads = width // head_dim - 2
    _rotate_and_store_kernel[(tokens, heads + 2, batch)](
        qkv,
        rotary,
        rotary.stride(0),
        queries,
        keys,
        values,
        keys.stride(0),
        HEADS=heads,
        HALF=head_dim // 2,
        num_warps=1,
    )


ROTATE_AND_STORE = Op("rotate_and_store", rotate_and_store_reference, rotate_and_store_triton)
