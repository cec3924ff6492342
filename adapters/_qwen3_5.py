"""The Qwen3.5 language model: three gated delta layers, then one of full attention, and so on.

    delta       q, k, v = silu(causal conv(W x)); o = delta rule; out = W_o (rms(o) w silu(z))
    attention   [q | gate] = W_q x; out = W_o (attend(q, k, v) sigmoid(gate)); a quarter of each head is rotated

Norms are x / rms(x) (1 + w), but the one inside a delta layer. Names of members are those of the files. What a layer
has to remember between calls is its own last inputs and matrix (delta), or its keys and values (attention).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from phyai_adapters._qwen3_text import GatedFeedForward, interleaved_rotary
from phyai_core.layers.gemma import KeysValues
from phyai_core.layers.norm import RMSNorm
from phyai_core.layers.rotary import Rotary, rotate
from phyai_kernels.causal_conv import CAUSAL_CONV
from phyai_kernels.gated_delta import GATED_DELTA
from phyai_kernels.gated_rms_norm import GATED_RMS_NORM


@dataclass(frozen=True)
class HybridSizes:
    """Sizes of the language model. `kinds`: linear_attention or full_attention, per layer."""

    width: int
    mlp_width: int
    vocab: int
    kinds: tuple[str, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotated: int  # elements of each head that are rotated
    theta: float
    sections: tuple[int, int, int]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    window: int  # of the convolution


def read_hybrid_sizes(config: Mapping[str, Any], kinds: Sequence[str]) -> HybridSizes:
    """Of a text_config."""
    rope = config["rope_parameters"]
    return HybridSizes(
        width=config["hidden_size"],
        mlp_width=config["intermediate_size"],
        vocab=config["vocab_size"],
        kinds=tuple(kinds),
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rotated=int(config["head_dim"] * rope["partial_rotary_factor"]),
        theta=rope["rope_theta"],
        sections=tuple(rope["mrope_section"]),
        key_heads=config["linear_num_key_heads"],
        value_heads=config["linear_num_value_heads"],
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        window=config["linear_conv_kernel_dim"],
    )


class DeltaMemory(NamedTuple):
    """What a delta layer remembers: the last W - 1 inputs of its convolution [B, W - 1, C] and S [B, N, K, V]."""

    inputs: Tensor
    state: Tensor


class Weight(nn.Module):
    """A member that is nothing but its weight."""

    def __init__(self, *shape: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))


class DeltaMixer(nn.Module):
    """The token mixer of most layers."""

    def __init__(self, sizes: HybridSizes):
        super().__init__()
        self.sizes = sizes
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        self.split = (keys, keys, values)
        self.in_proj_qkv = nn.Linear(sizes.width, sum(self.split), bias=False)
        self.in_proj_z = nn.Linear(sizes.width, values, bias=False)
        self.in_proj_a, self.in_proj_b = (nn.Linear(sizes.width, sizes.value_heads, bias=False) for _ in range(2))
        self.conv1d = Weight(sum(self.split), 1, sizes.window)
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(sizes.value_heads)) for _ in range(2))
        self.norm = Weight(sizes.value_dim)
        self.out_proj = nn.Linear(values, sizes.width, bias=False)

    def forward(self, x: Tensor, memory: DeltaMemory | None) -> tuple[Tensor, DeltaMemory]:
        """x [B, T, D] -> ([B, T, D], memory)."""
        sizes = self.sizes
        q, k, v, inputs = self._convolve(self.in_proj_qkv(x), memory)
        if memory is None:
            state = x.new_zeros(len(x), sizes.value_heads, sizes.key_dim, sizes.value_dim, dtype=torch.float32)
        else:
            state = memory.state.clone()
        out, normed = torch.empty_like(v), torch.empty_like(v)
        given = (q, k, v, self.in_proj_a(x), self.in_proj_b(x), self.A_log, self.dt_bias, state, out)
        GATED_DELTA.choose(x.device, *given)(*given)
        rows = (part.view(-1, sizes.value_dim) for part in (out, self.in_proj_z(x)))
        GATED_RMS_NORM.pick(x.device)(*rows, self.norm.weight, normed.view(-1, sizes.value_dim))
        return self.out_proj(normed.flatten(2)), DeltaMemory(inputs, state)

    def _convolve(self, mixed: Tensor, memory: DeltaMemory | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """mixed [B, T, C] -> q, k, v [B, T, heads, .], and the inputs that the next call's convolution reaches back to.

        What was before the first token is zero.
        """
        sizes, reach = self.sizes, self.sizes.window - 1
        whole = mixed if memory is None else torch.cat((memory.inputs, mixed), dim=1)
        parts = [whole.new_empty(*whole.shape[:2], width) for width in self.split]
        CAUSAL_CONV.pick(mixed.device)(whole, self.conv1d.weight[:, 0], *parts)
        new = slice(whole.shape[1] - mixed.shape[1], None)
        dims = (sizes.key_dim, sizes.key_dim, sizes.value_dim)
        heads = (part[:, new].unflatten(-1, (-1, dim)).contiguous() for part, dim in zip(parts, dims, strict=True))
        kept = whole[:, -reach:]
        return *heads, pad(kept, (0, 0, reach - kept.shape[1], 0))


class AttentionMixer(nn.Module):
    """The token mixer of every fourth layer."""

    def __init__(self, sizes: HybridSizes):
        super().__init__()
        self.sizes = sizes
        query, shared = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, 2 * query, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(sizes.width, shared, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(query, sizes.width, bias=False)
        self.q_norm, self.k_norm = RMSNorm(sizes.head_dim), RMSNorm(sizes.head_dim)

    def forward(self, x: Tensor, memory: KeysValues | None, rotary: Rotary) -> tuple[Tensor, KeysValues]:
        """x [B, T, D] -> ([B, T, D], keys and values so far)."""
        sizes = self.sizes
        q, gate = self.q_proj(x).unflatten(-1, (sizes.num_heads, -1)).chunk(2, dim=-1)
        k, v = (part(x).unflatten(-1, (-1, sizes.head_dim)) for part in (self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q)[0], rotary), rotate(self.k_norm(k)[0], rotary)
        kept = KeysValues(k, v)
        if memory is not None:
            kept = KeysValues(*(torch.cat(pair, dim=1) for pair in zip(memory, kept, strict=True)))
        past = kept.k.shape[1] - q.shape[1]
        mask = torch.ones(q.shape[1], kept.k.shape[1], dtype=torch.bool, device=x.device).tril(past)
        q, k, v = (part.transpose(1, 2) for part in (q, *kept))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
        return self.o_proj((out * gate.sigmoid()).flatten(2)), kept


class HybridLayer(nn.Module):
    """Token mixer and feed-forward, each behind its norm."""

    def __init__(self, sizes: HybridSizes, kind: str):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(sizes.width), RMSNorm(sizes.width)
        if kind == "linear_attention":
            self.linear_attn = DeltaMixer(sizes)
        else:
            self.self_attn = AttentionMixer(sizes)
        self.mlp = GatedFeedForward(sizes.width, sizes.mlp_width)

    def forward(self, x: Tensor, rotary: Rotary, memory: DeltaMemory | KeysValues | None):
        """x [B, T, D] -> ([B, T, D], memory)."""
        normed = self.input_layernorm(x)[0]
        if hasattr(self, "linear_attn"):
            mixed, memory = self.linear_attn(normed, memory)
        else:
            mixed, memory = self.self_attn(normed, memory, rotary)
        x, normed = self.post_attention_layernorm.add(x, mixed)
        return x + self.mlp(normed), memory


class HybridText(nn.Module):
    """Embeddings -> hidden states, with a memory for what comes after."""

    def __init__(self, sizes: HybridSizes):
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.width)
        self.layers = nn.ModuleList(HybridLayer(sizes, kind) for kind in sizes.kinds)
        self.norm = RMSNorm(sizes.width)

    def states(self, x: Tensor, positions: Tensor, memories: Sequence | None = None):
        """Embeddings x [B, T, D] at positions [B, 3, T] -> per layer its output [B, T, D] and its memory."""
        rotary = interleaved_rotary(positions, self.sizes.rotated, self.sizes.theta, self.sizes.sections)
        for index, layer in enumerate(self.layers):
            x, memory = layer(x, rotary, None if memories is None else memories[index])
            yield x, memory

    def forward(self, x: Tensor, positions: Tensor, memories: Sequence | None = None) -> tuple[Tensor, tuple]:
        """As `states` -> (normalised hidden state [B, T, D], memories)."""
        hidden, kept = zip(*self.states(x, positions, memories), strict=True)
        return self.norm(hidden[-1])[0], kept
