"""The gated delta rule: attention whose memory is one matrix S [K, V] per head, written by correction and decaying.

    S <- exp(g) S;    S <- S + k (beta (v - S^T k))^T;    o = S^T q
    g = -exp(a_log) softplus(a + dt_bias),    beta = sigmoid(b),    |k| = 1,    |q| = K^-0.5

The reference goes token by token in float32; the Triton kernels do the same sums by chunks (gated_delta_chunks.py).
Letters: B batch, T tokens, M heads of queries and keys, N heads of values, a multiple of M. Source: arXiv 2412.06464.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from phyai_kernels.gated_delta_chunks import EPS, gated_delta_triton
from phyai_kernels.op import Candidate, Op

HEAD_DIMS = (16, 32, 64, 128, 256)


def unit_length(x: Tensor) -> Tensor:
    """x [..., K] -> float32 of length 1."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def gated_delta_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    out: Tensor,
) -> None:
    """q, k [B, T, M, K], v and out [B, T, N, V], a and b [B, T, N], a_log and dt_bias [N]; all contiguous.

    state [B, N, K, V] float32 is S before the first token, and is left as S behind the last one.
    """
    groups = v.shape[2] // k.shape[2]
    q, k = (unit_length(part).repeat_interleave(groups, dim=2) for part in (q, k))
    q, beta = q * k.shape[-1] ** -0.5, b.float().sigmoid()
    decay = (-a_log.float().exp() * softplus(a.float() + dt_bias.float())).exp()
    for t in range(q.shape[1]):
        state *= decay[:, t, :, None, None]
        seen = torch.einsum("bnkv,bnk->bnv", state, k[:, t])
        state += torch.einsum("bnk,bnv->bnkv", k[:, t], beta[:, t, :, None] * (v[:, t].float() - seen))
        out[:, t] = torch.einsum("bnkv,bnk->bnv", state, q[:, t])


def gated_delta_limits(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> str | None:
    """Why the Triton kernels cannot take these heads, or None."""
    if wrong := [dim for dim in (k.shape[-1], v.shape[-1]) if dim not in HEAD_DIMS]:
        return f"heads of {wrong[0]}; it takes {', '.join(map(str, HEAD_DIMS))}"
    return None


def _keep_shapes(*_: Any) -> None:
    """On the meta device there are only shapes, and `out` has its own already."""


SHAPES = Candidate("shapes", _keep_shapes, lambda device, *_: None if device.type == "meta" else "numbers are wanted")
GATED_DELTA = Op("gated_delta", gated_delta_reference, gated_delta_triton, first=(SHAPES,), limits=gated_delta_limits)
