"""The text side of Qwen3-VL: decoder layers with a norm over each head's queries and keys, positions of three axes.

Names of members are those of the files. B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from phyai_core.layers.norm import ScaledRMSNorm
from phyai_core.layers.rotary import Rotary, rotate


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the language model; `sections`: frequencies of the axes time, row, column."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    theta: float
    sections: tuple[int, int, int]


def read_text_sizes(config: Mapping[str, Any], depth: int) -> TextSizes:
    """Of a text_config, cut to its first `depth` layers."""
    rope = config.get("rope_parameters") or config["rope_scaling"]
    return TextSizes(
        width=config["hidden_size"],
        depth=depth,
        mlp_width=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        eps=config["rms_norm_eps"],
        theta=rope.get("rope_theta", config.get("rope_theta", 5e6)),
        sections=tuple(rope["mrope_section"]),
    )


class Sight(NamedTuple):
    """What each token may see. Padding sees itself, because some kernels give no numbers for a query without keys."""

    mask: Tensor  # bool [B, 1, T, T]
    real: Tensor  # bool [B, 1, T, 1], False for padding

    @classmethod
    def causal(cls, mask: Tensor) -> Sight:
        """Of tokens that see the real ones before them; mask bool [B, T]."""
        own = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        before = torch.ones_like(own).tril()
        return cls(((before & mask[:, None]) | own)[:, None], mask[:, None, :, None])


class SelfAttention(nn.Module):
    """Grouped heads, with a norm over each head's queries and keys."""

    def __init__(self, sizes: TextSizes):
        super().__init__()
        self.heads = (-1, sizes.head_dim)
        query, shared = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, query, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(sizes.width, shared, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(query, sizes.width, bias=False)
        self.q_norm, self.k_norm = (ScaledRMSNorm(sizes.head_dim, sizes.eps) for _ in range(2))

    def forward(self, x: Tensor, rotary: Rotary, sight: Sight) -> Tensor:
        """[B, T, D] -> [B, T, D]; zeros for padding."""
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, self.heads)), rotary)
        k = rotate(self.k_norm(self.k_proj(x).unflatten(-1, self.heads)), rotary)
        v = self.v_proj(x).unflatten(-1, self.heads)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=sight.mask, enable_gqa=True)
        return self.o_proj(out.masked_fill(~sight.real, 0.0).transpose(1, 2).flatten(2))


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class TextLayer(nn.Module):
    """One decoder layer."""

    def __init__(self, sizes: TextSizes):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (ScaledRMSNorm(sizes.width, sizes.eps) for _ in range(2))
        self.self_attn, self.mlp = SelfAttention(sizes), GatedFeedForward(sizes.width, sizes.mlp_width)

    def forward(self, x: Tensor, rotary: Rotary, sight: Sight) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x, normed = self.post_attention_layernorm.add(x, self.self_attn(self.input_layernorm(x), rotary, sight))
        return x + self.mlp(normed)


def interleaved_rotary(positions: Tensor, dim: int, theta: float, sections: tuple[int, int, int]) -> Rotary:
    """positions [B, 3, T] -> Rotary over `dim` elements; frequency i belongs to axis i % 3, while that has any left."""
    frequency = theta ** -(torch.arange(0, dim, 2, device=positions.device) / dim)
    angle = positions[..., None].float() * frequency  # [B, 3, T, dim / 2]
    chosen = angle[:, 0].clone()
    for axis in (1, 2):
        at = slice(axis, 3 * sections[axis], 3)
        chosen[..., at] = angle[:, axis, :, at]
    return Rotary(chosen.cos()[:, :, None], chosen.sin()[:, :, None])
