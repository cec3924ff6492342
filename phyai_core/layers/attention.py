"""Attention. Mostly every query may see the same keys: one mask over the keys, no causal order.

That covers bidirectional prefixes, vision towers and most action chunks. Query heads that share a key/value head are
folded into the query axis, so that shared heads cost no copies of keys and values.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """q [B, Q, N, K], k and v [B, S, M, K] with N a multiple of M, key_mask bool [B, S] (True: visible) -> [B, Q, N K].

    A mask [B, Q, S] says it per query. Scores are scaled by K^-0.5. Every query must see at least one key.
    """
    batch, queries, heads, dim = q.shape
    shared = k.shape[2]
    q = q.view(batch, queries, shared, heads // shared, dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(batch, shared, heads // shared * queries, dim)
    mask = None if key_mask is None else _fold(key_mask, heads // shared)
    out = scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    out = out.view(batch, shared, heads // shared, queries, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, queries, heads * dim)


def _fold(mask: Tensor, groups: int) -> Tensor:
    """[B, S] -> [B, 1, 1, S], or [B, Q, S] -> [B, 1, groups Q, S]: one row per folded query."""
    return mask[:, None, None, :] if mask.ndim == 2 else mask.repeat(1, groups, 1)[:, None]
