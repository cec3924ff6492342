"""Attention. Mostly every query may see the same keys: one mask over the keys, no causal order.

That covers bidirectional prefixes, vision towers and most action chunks. Query heads that share a key/value head are
folded into the query axis, so that shared heads cost no copies of keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from phyai_core.layers.fusing import fuses
from phyai_kernels.masked_softmax import MASKED_SOFTMAX
from phyai_kernels.small_attention import SMALL_ATTENTION

# Folded ones; for so few, torch's fused kernels leave most of a GPU idle (H200, 400 queries, 1018 keys: 56 us to 16).
FEW_QUERIES = 1024


def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """q [B, Q, N, K], k and v [B, S, M, K] with N a multiple of M, key_mask bool [B, S] (True: visible) -> [B, Q, N K].

    A mask [B, Q, S] says it per query. Scores are scaled by K^-0.5. Every query must see at least one key.
    """
    mask = key_mask[:, None] if key_mask is not None and key_mask.ndim == 2 else key_mask
    if fuses(SMALL_ATTENTION, q, k, v, mask):
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        SMALL_ATTENTION.triton(q, k, v, mask, out)
        return out.flatten(2)
    batch, queries, heads, dim = q.shape
    shared = k.shape[2]
    q = q.view(batch, queries, shared, heads // shared, dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(batch, shared, heads // shared * queries, dim)
    by_products = q.is_cuda and not q.requires_grad and mask is not None and q.shape[2] <= FEW_QUERIES
    attention = attend_by_products if by_products else _attend_at_once
    out = attention(q, k.transpose(1, 2), v.transpose(1, 2), mask)
    out = out.view(batch, shared, heads // shared, queries, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, queries, heads * dim)


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [B, M, R, K], k and v [B, M, S, K], mask bool [B, Q, S], R a multiple of Q -> [B, M, R, K].

    Two products, float32 between them; not for differentiation.
    """
    left, right = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)
    wide = {} if q.dtype == torch.float32 else {"out_dtype": torch.float32}
    scores = torch.bmm(left, right, **wide).view(*q.shape[:-1], -1)
    weights = torch.empty(scores.shape, dtype=v.dtype, device=v.device)
    softmax = MASKED_SOFTMAX.triton if fuses(MASKED_SOFTMAX, q) else MASKED_SOFTMAX.reference
    softmax(scores, mask.contiguous(), q.shape[-1] ** -0.5, weights)
    return torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(*q.shape[:-1], -1)


def _attend_at_once(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """As attend_by_products, by torch; without a mask everything is seen."""
    return scaled_dot_product_attention(q, k, v, None if mask is None else _fold(mask, q.shape[2]))


def _fold(mask: Tensor, rows: int) -> Tensor:
    """[B, Q, S] -> [B, 1, R, S], one row per folded query; [B, 1, S] -> [B, 1, 1, S]."""
    return mask[:, None] if mask.shape[1] == 1 else mask.repeat(1, rows // mask.shape[1], 1)[:, None]
