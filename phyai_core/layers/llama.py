"""The Llama decoder layer, and a variant whose keys and values come from another stack of layers.

    h = x + o(attend(q(norm(x)), k, v));    out = h + down(silu(gate(norm(h))) * up(norm(h)))

Keys are kept after the rotation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phyai_core.layers.attention import attend
from phyai_core.layers.gated import swiglu
from phyai_core.layers.gemma import GemmaSizes, KeysValues
from phyai_core.layers.norm import ScaledRMSNorm
from phyai_core.layers.rotary import Rotary, rotate


class _Block(nn.Module):
    """What follows the projections of a layer."""

    def __init__(self, sizes: GemmaSizes, dtype: torch.dtype, eps: float):
        super().__init__()
        self.sizes = sizes
        self.heads = (-1, sizes.head_dim)
        self.out = _linear(sizes.num_heads * sizes.head_dim, sizes.width, dtype)
        self.mlp_norm = ScaledRMSNorm(sizes.width, eps)
        self.gate_up = _linear(sizes.width, 2 * sizes.mlp_width, dtype)
        self.down = _linear(sizes.mlp_width, sizes.width, dtype)

    def finish(self, x: Tensor, q: Tensor, keys: KeysValues, mask: Tensor | None) -> Tensor:
        """Attention and feed-forward with their residuals, [B, T, D]."""
        x, normed = self.mlp_norm.add(x, self.out(attend(q, keys.k, keys.v, mask)))
        return x + self.down(swiglu(self.gate_up(normed)))


class LlamaLayer(_Block):
    """One layer. `last=True` keeps only what yields keys and values: nothing reads a last prefix layer's output."""

    def __init__(self, sizes: GemmaSizes, dtype: torch.dtype, eps: float, last: bool = False):
        super().__init__(sizes, dtype, eps)
        shared = sizes.num_kv_heads * sizes.head_dim
        self.split = (0 if last else sizes.num_heads * sizes.head_dim, shared, shared)
        self.attention_norm = ScaledRMSNorm(sizes.width, eps)
        self.qkv = _linear(sizes.width, sum(self.split), dtype)
        if last:
            del self.out, self.mlp_norm, self.gate_up, self.down

    def forward(
        self, x: Tensor, rotary: Rotary, mask: Tensor | None = None, past: KeysValues | None = None
    ) -> tuple[Tensor, KeysValues]:
        """x [B, T, D] -> (x after the layer, its own keys and values [B, T, M, K]).

        `past` precedes the layer's own keys; `mask`, bool [B, S] or [B, T, S], covers both. A `last` layer returns x.
        """
        q, k, v = self.qkv(self.attention_norm(x)).split(self.split, dim=-1)
        own = KeysValues(rotate(k.unflatten(-1, self.heads), rotary), v.unflatten(-1, self.heads).contiguous())
        if not self.split[0]:
            return x, own
        seen = own if past is None else KeysValues(*(torch.cat(pair, dim=1) for pair in zip(past, own, strict=True)))
        return self.finish(x, rotate(q.unflatten(-1, self.heads), rotary), seen, mask), own


class CrossLlamaLayer(_Block):
    """Attends to the keys and values of another stack, `inputs` wide, through projections of its own."""

    def __init__(self, sizes: GemmaSizes, dtype: torch.dtype, eps: float, inputs: int):
        super().__init__(sizes, dtype, eps)
        shared = sizes.num_kv_heads * sizes.head_dim
        self.attention_norm = ScaledRMSNorm(sizes.width, eps)
        self.query = _linear(sizes.width, sizes.num_heads * sizes.head_dim, dtype)
        self.key, self.value = _linear(inputs, shared, dtype), _linear(inputs, shared, dtype)

    def project(self, given: KeysValues) -> KeysValues:
        """The other stack's keys and values [B, S, M, K] -> this layer's."""
        k, v = self.key(given.k.flatten(2)), self.value(given.v.flatten(2))
        return KeysValues(k.unflatten(-1, self.heads), v.unflatten(-1, self.heads))

    def forward(self, x: Tensor, rotary: Rotary, mask: Tensor, projected: KeysValues) -> Tensor:
        """x [B, T, D], projected keys and values [B, S, M, K], mask bool [B, S] -> [B, T, D]."""
        q = self.query(self.attention_norm(x)).unflatten(-1, self.heads)
        return self.finish(x, rotate(q, rotary), projected, mask)


def _linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype)
