"""Steps of transformer blocks with LayerNorms, each one launch where a kernel fuses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear

from phyai_core.layers.fusing import fuses
from phyai_kernels.add_layer_norm import ADD_LAYER_NORM
from phyai_kernels.bias_gelu import BIAS_GELU

EPS = 1e-5


def modulated_layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = EPS) -> Tensor:
    """LN(x [B, T, D]) * scale + shift, both [B, 1, D]."""
    if len(x) == 1 and fuses(ADD_LAYER_NORM, x):  # the kernel takes one scale for all rows
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        ADD_LAYER_NORM.triton(rows, None, None, scale.reshape(-1), shift.reshape(-1), out, eps)
        return out.view(x.shape)
    return torch.addcmul(shift, layer_norm(x, x.shape[-1:], eps=eps), scale)


def project_and_norm(
    x: Tensor, mixed: Tensor, out: nn.Linear, norm: nn.LayerNorm | None = None
) -> tuple[Tensor, Tensor]:
    """x + out(mixed), and `norm` of it (None: without weights); [B, T, D] each. The kernel writes the sum over x."""
    weight, shift, eps = (None, None, EPS) if norm is None else (norm.weight, norm.bias, norm.eps)
    if fuses(ADD_LAYER_NORM, x) and x.is_contiguous():
        rows = x.view(-1, x.shape[-1])
        normed, branch = torch.empty_like(rows), linear(mixed, out.weight).view(rows.shape)
        ADD_LAYER_NORM.triton(rows, branch, out.bias, weight, shift, normed, eps)
        return x, normed.view(x.shape)
    x = x + out(mixed)
    return x, layer_norm(x, x.shape[-1:], weight, shift, eps)


def linear_gelu(x: Tensor, layer: nn.Linear) -> Tensor:
    """gelu(layer(x)), in the approximation by tanh."""
    if not fuses(BIAS_GELU, x):
        return gelu(layer(x), approximate="tanh")
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty(len(rows), layer.out_features, dtype=x.dtype, device=x.device)
    given = (rows, layer.weight, layer.bias, out)
    BIAS_GELU.choose(x.device, *given)(*given)
    return out.view(*x.shape[:-1], -1)
