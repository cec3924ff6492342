"""QKV product of a prefix layer, rotation and store into the KV buffer in one launch:

    q, k, v = x W^T;    queries = rotate(q);    keys[.., 0 .. T - 1] = rotate(k);    values[..] = v

FP8 operands come with scales (dense.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.dense import Scales, dense_reference
from phyai_kernels.hopper import refuse
from phyai_kernels.op import Candidate, Op
from phyai_kernels.prefix_qkv_hopper import HEAD_DIM, HEADS, prefix_qkv_hopper
from phyai_kernels.rotate_and_store import rotate_and_store_reference


def prefix_qkv_reference(
    x: Tensor,
    weight: Tensor,
    scales: Scales | None,
    rotary: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """x [B T, D], weight [(N + 2) K, D] in the order of `qkv_order`, the rest as in rotate_and_store.py."""
    heads, head_dim = queries.shape[-1] // keys.shape[-1], keys.shape[-1]
    blocked = torch.empty(len(x), len(weight), dtype=keys.dtype, device=x.device)
    dense_reference(x, weight, blocked, scales=scales)
    qkv = torch.empty_like(blocked)
    qkv[:, qkv_order(heads, head_dim, x.device)] = blocked
    rotate_and_store_reference(qkv.unflatten(0, queries.shape[:2]), rotary, queries, keys, values)


def qkv_order(heads: int, head_dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Rows of a QKV weight in 2 N blocks of whole rotary pairs, first elements before their partners.

    Block t holds half of the pairs of head t // 2, then as many of its share of k and v.
    """
    half, quarter, share = head_dim // 2, head_dim // 4, head_dim // (2 * heads)
    rows = []
    for block in range(2 * heads):
        pair = block * share
        starts = block // 2 * head_dim + block % 2 * quarter, (heads + pair // half) * head_dim + pair % half
        for start, count in zip(starts, (quarter, share), strict=True):
            rows += [start + torch.arange(count), start + half + torch.arange(count)]
    return torch.cat(rows).to(device)


def refuse_prefix_qkv(
    device: torch.device, x: Tensor, weight: Tensor, scales: Scales | None, rotary: Tensor, *cache: Tensor
) -> str | None:
    """Why the Hopper kernel cannot take the call, or None."""
    wanted = torch.float8_e4m3fn if scales is not None else torch.bfloat16
    if not (x.dtype == weight.dtype == wanted and cache[1].dtype == torch.bfloat16):
        return f"takes bfloat16, or FP8 with scales, not {x.dtype}, and makes bfloat16, not {cache[1].dtype}"
    heads, head_dim = cache[0].shape[-1] // cache[1].shape[-1], cache[1].shape[-1]
    if (heads, head_dim) != (HEADS, HEAD_DIM) or x.shape[1] % 128:
        return f"takes {HEADS} heads of {HEAD_DIM} and a width of a multiple of 128, not {heads} of {head_dim}"
    return refuse(device)


HOPPER = Candidate("hopper", prefix_qkv_hopper, refuse_prefix_qkv)
PREFIX_QKV = Op("prefix_qkv", prefix_qkv_reference, first=(HOPPER,))
