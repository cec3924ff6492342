"""The Gemma decoder layer, as language model (plain norms) and as action expert (plain or adaptive norms).

    h = x + gate * o(attend(qkv(norm(x))));    out = h + gate * down(gelu_tanh(gate_proj(norm(h))) * up_proj(norm(h)))

q, k and v are one matrix, gate and up another, its rows in turns (g0, u0, g1, ..): fused kernels find both factors of
an output side by side. Keys are kept after the rotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from phyai_core.layers.attention import attend
from phyai_core.layers.fp8 import Fp8Linear
from phyai_core.layers.norm import AdaRMSNorm, RMSNorm, add_residual
from phyai_core.layers.rotary import Rotary, rotate


@dataclass(frozen=True)
class GemmaSizes:
    """Sizes of a stack of Gemma layers."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class KeysValues(NamedTuple):
    """Keys (rotated) and values of one layer, each [B, S, M, K] contiguous."""

    k: Tensor
    v: Tensor


class Modulation(NamedTuple):
    """What flow time does to one adaptive layer: scale, shift, gate for both norms, each [B, T, 3 D]."""

    attention: Tensor
    mlp: Tensor


class GemmaLayer(nn.Module):
    """One layer. `last=True` keeps only what yields keys and values: nothing reads a last prefix layer's output."""

    def __init__(self, sizes: GemmaSizes, dtype: torch.dtype, adaptive: bool = False, last: bool = False):
        super().__init__()
        self.sizes = sizes
        query, shared = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.attention_norm = AdaRMSNorm() if adaptive else RMSNorm(sizes.width)
        self.split = (0 if last else query, shared, shared)
        self.qkv = _linear(sizes.width, sum(self.split), dtype)
        if not last:
            self.out = _linear(query, sizes.width, dtype)
            self.mlp_norm = AdaRMSNorm() if adaptive else RMSNorm(sizes.width)
            self.gate_up = _linear(sizes.width, 2 * sizes.mlp_width, dtype)
            self.down = _linear(sizes.mlp_width, sizes.width, dtype)

    def round_to_fp8(self) -> None:
        """Rounds all large weights but those of `out`; what goes into their products is rounded too from here on."""
        for name in ("qkv", "gate_up", "down"):
            if hasattr(self, name):
                setattr(self, name, Fp8Linear.rounded(getattr(self, name)))

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        key_mask: Tensor | None = None,
        past: KeysValues | None = None,
        modulation: Modulation | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """x [B, T, D] -> (x after the layer, its own keys and values [B, T, M, K]).

        `past` precedes the layer's own keys; `key_mask` [B, S] covers both. A `last` layer returns x unchanged.
        """
        on_attention, on_mlp = modulation or (None, None)
        normed, gate = self.attention_norm(x, on_attention)
        q, own = self._project(normed, rotary)
        if q is None:
            return x, own
        k, v = own if past is None else (torch.cat(pair, dim=1) for pair in zip(past, own, strict=True))
        x = add_residual(x, self.out(attend(q, k, v, key_mask)), gate)
        normed, gate = self.mlp_norm(x, on_mlp)
        return add_residual(x, self._feed_forward(normed), gate), own

    def _project(self, normed: Tensor, rotary: Rotary) -> tuple[Tensor | None, KeysValues]:
        q, k, v = self.qkv(normed).split(self.split, dim=-1)
        heads = (-1, self.sizes.head_dim)
        own = KeysValues(rotate(k.unflatten(-1, heads), rotary), v.unflatten(-1, heads).contiguous())
        return (rotate(q.unflatten(-1, heads), rotary) if self.split[0] else None), own

    def _feed_forward(self, normed: Tensor) -> Tensor:
        gate, up = self.gate_up(normed).unflatten(-1, (-1, 2)).unbind(-1)
        return self.down(gelu(gate, approximate="tanh") * up)


def _linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype)
