"""What follows a prefix's QKV product: rotate q, rotate k into the KV buffer, copy v there.

Half-split rotary embedding: element i of a head is paired with element i + K / 2. Row t of robot b has position t: a
prefix is packed, its padding comes last. Rows from P_b on are written too and must be masked by whoever reads them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton


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
    PADDED: tl.constexpr,
):
    token = tl.program_id(0)
    robot = tl.program_id(1)
    head = tl.arange(0, PADDED)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    row = robot * tl.num_programs(0) + token
    source = qkv_ptr + (row * (HEADS + 2) + head) * (2 * HALF) + pair
    first = tl.load(source, mask=head < HEADS + 2, other=0.0)
    second = tl.load(source + HALF, mask=head < HEADS + 2, other=0.0)
    cos = tl.load(rotary_ptr + token * HALF + pair)
    sin = tl.load(rotary_ptr + sin_offset + token * HALF + pair)
    turned = (first.to(tl.float32) * cos - second.to(tl.float32) * sin).to(first.dtype)
    turned_second = (second.to(tl.float32) * cos + first.to(tl.float32) * sin).to(first.dtype)
    query = queries_ptr + (row * HEADS + head) * (2 * HALF) + pair
    tl.store(query, turned, mask=head < HEADS)
    tl.store(query + HALF, turned_second, mask=head < HEADS)
    stored = robot * robot_stride + token * 2 * HALF + pair + head * 0
    tl.store(keys_ptr + stored, turned, mask=head == HEADS)
    tl.store(keys_ptr + stored + HALF, turned_second, mask=head == HEADS)
    tl.store(values_ptr + stored, first, mask=head == HEADS + 1)  # values are not rotated
    tl.store(values_ptr + stored + HALF, second, mask=head == HEADS + 1)


def rotate_and_store_triton(qkv: Tensor, rotary: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> None:
    """Same contract as the reference, in one launch; K a power of two."""
    batch, tokens, width = qkv.shape
    head_dim = keys.shape[-1]
    heads = width // head_dim - 2
    _rotate_and_store_kernel[(tokens, batch)](
        qkv,
        rotary,
        rotary.stride(0),
        queries,
        keys,
        values,
        keys.stride(0),
        HEADS=heads,
        HALF=head_dim // 2,
        PADDED=triton.next_power_of_2(heads + 2),
        num_warps=4,
    )


ROTATE_AND_STORE = Op("rotate_and_store", rotate_and_store_reference, rotate_and_store_triton)
