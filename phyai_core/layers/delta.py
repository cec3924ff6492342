"""The gated delta rule: attention whose memory is one matrix S [K, V] per head, written by correction and decaying.

    S <- exp(g) S;    S <- S + k (beta (v - S^T k))^T;    o = S^T q

Two forms of the same sums: token by token, and by chunks of tokens, where the corrections inside a chunk are one
triangular system. Letters: B batch, T tokens, N heads, K key dim, V value dim, C chunk. All float32.
Source: arXiv 2412.06464.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64
EPS = 1e-6


def unit_length(x: Tensor) -> Tensor:
    """x [..., K] -> float32 with length 1."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def delta_recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """q, k [B, T, N, K], v [B, T, N, V], g and beta [B, T, N], state [B, N, K, V] -> (o [B, T, N, V], last state)."""
    out = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        seen = torch.einsum("bnkv,bnk->bnv", state, k[:, t])
        correction = beta[:, t, :, None] * (v[:, t] - seen)
        state = state + k[:, t, :, :, None] * correction[:, :, None]
        out.append(torch.einsum("bnkv,bnk->bnv", state, q[:, t]))
    return torch.stack(out, dim=1), state


def delta_chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same, by chunks: what a chunk's tokens correct in each other is solved at once, the state passes between."""
    tokens = q.shape[1]
    q, k, v = (_cut(x) for x in (q, k, v))  # [B, N, M, C, .]
    g, beta = (_cut(x[..., None])[..., 0] for x in (g, beta))
    total = g.cumsum(-1)  # log of the decay since the chunk began
    decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()  # [B, N, M, C, C]
    weighted = k * beta[..., None]
    inner = (weighted @ k.mT * decay).tril(-1)
    identity = torch.eye(CHUNK, device=q.device, dtype=q.dtype)
    given = torch.cat((v * beta[..., None], weighted * total.exp()[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(identity + inner, given, upper=False, unitriangular=True)
    values, keys = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    out = []
    for m in range(q.shape[2]):
        new = values[:, :, m] - keys[:, :, m] @ state
        past = q[:, :, m] * total[:, :, m, :, None].exp()
        out.append(past @ state + (q[:, :, m] @ k[:, :, m].mT * decay[:, :, m]) @ new)
        left = (total[:, :, m, -1:] - total[:, :, m]).exp()[..., None]
        state = state * total[:, :, m, -1, None, None].exp() + (k[:, :, m] * left).mT @ new
    return torch.stack(out, dim=2).flatten(2, 3).transpose(1, 2)[:, :tokens], state


def _cut(x: Tensor) -> Tensor:
    """[B, T, N, D] -> [B, N, M, C, D], zeros behind: they write nothing and do not decay."""
    missing = -x.shape[1] % CHUNK
    return pad(x, (0, 0, 0, 0, 0, missing)).transpose(1, 2).unflatten(2, (-1, CHUNK))
