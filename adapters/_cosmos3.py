"""The transformer of Cosmos3 in policy mode: one set of weights reads text, another denoises video and actions.

    text    causal, once per prompt: keys and values of every layer
    video + actions   [patches of all latent frames | action rows]; every token sees the text and all of these

Clean frames and rows (the conditioning) carry no time embedding. Names of members are those of the files. B batch,
L text tokens, N layers, T tokens of video and actions, D width, M heads of keys, K elements of a head, F latent frames,
A action dims of the model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention, silu

from phyai_adapters._cosmos3_scene import CosmosSizes, Scene, place_tokens
from phyai_adapters._qwen3_text import GatedFeedForward, interleaved_rotary
from phyai_core.layers.gemma import KeysValues
from phyai_core.layers.norm import ScaledRMSNorm
from phyai_core.layers.rotary import Rotary, rotate

TIME_FEATURES = 256


class Attention(nn.Module):
    """Both sets of projections."""

    def __init__(self, sizes: CosmosSizes):
        super().__init__()
        self.heads = (-1, sizes.head_dim)
        query, shared, width = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim, sizes.width
        self.to_q, self.add_q_proj = (nn.Linear(width, query, bias=False) for _ in range(2))
        self.to_k, self.to_v, self.add_k_proj, self.add_v_proj = (
            nn.Linear(width, shared, bias=False) for _ in range(4)
        )
        self.to_out, self.to_add_out = (nn.Linear(query, width, bias=False) for _ in range(2))
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = (
            ScaledRMSNorm(sizes.head_dim, sizes.eps) for _ in range(4)
        )

    def read(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, KeysValues]:
        """Text x [B, L, D] -> ([B, L, D], its keys and values)."""
        q = rotate(self.norm_q(self.to_q(x).unflatten(-1, self.heads)), rotary)
        k = rotate(self.norm_k(self.to_k(x).unflatten(-1, self.heads)), rotary)
        kept = KeysValues(k, self.to_v(x).unflatten(-1, self.heads))
        return self.to_out(_attend(q, kept)), kept

    def denoise(self, x: Tensor, rotary: Rotary, text: KeysValues, seen: Tensor) -> Tensor:
        """Video and actions x [B, T, D], text keys and values [B, L, M, K] -> [B, T, D]."""
        q = rotate(self.norm_added_q(self.add_q_proj(x).unflatten(-1, self.heads)), rotary)
        k = rotate(self.norm_added_k(self.add_k_proj(x).unflatten(-1, self.heads)), rotary)
        v = self.add_v_proj(x).unflatten(-1, self.heads)
        both = KeysValues(torch.cat((text.k, k), dim=1), torch.cat((text.v, v), dim=1))
        return self.to_add_out(_attend(q, both, seen))


def _attend(q: Tensor, kept: KeysValues, seen: Tensor | None = None) -> Tensor:
    """Of queries [B, T, n M, K]. `seen` bool [B, 1, 1, S]: keys that count; None: causal.

    Keys are repeated for the heads that share them: the kernels that take a mask know no shared ones.
    """
    shared = q.shape[2] // kept.k.shape[2]
    k, v = (part.repeat_interleave(shared, dim=2).transpose(1, 2) for part in kept)
    out = scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen, is_causal=seen is None)
    return out.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """One layer of both; the names of the second set end in moe_gen."""

    def __init__(self, sizes: CosmosSizes):
        super().__init__()
        self.self_attn = Attention(sizes)
        self.input_layernorm, self.input_layernorm_moe_gen = (ScaledRMSNorm(sizes.width, sizes.eps) for _ in range(2))
        self.post_attention_layernorm, self.post_attention_layernorm_moe_gen = (
            ScaledRMSNorm(sizes.width, sizes.eps) for _ in range(2)
        )
        self.mlp, self.mlp_moe_gen = (GatedFeedForward(sizes.width, sizes.mlp_width) for _ in range(2))

    def read(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, KeysValues]:
        mixed, kept = self.self_attn.read(self.input_layernorm(x), rotary)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), kept

    def denoise(self, x: Tensor, rotary: Rotary, text: KeysValues, seen: Tensor) -> Tensor:
        x = x + self.self_attn.denoise(self.input_layernorm_moe_gen(x), rotary, text, seen)
        return x + self.mlp_moe_gen(self.post_attention_layernorm_moe_gen(x))


class DomainLinear(nn.Module):
    """One linear layer per kind of robot; weight [in, out] and bias are rows of two tables."""

    def __init__(self, domains: int, inputs: int, outputs: int):
        super().__init__()
        self.inputs = inputs
        self.fc, self.bias = nn.Embedding(domains, inputs * outputs), nn.Embedding(domains, outputs)

    def forward(self, x: Tensor, domain: int) -> Tensor:
        """[B, R, in] -> [B, R, out]."""
        return x @ self.fc.weight[domain].unflatten(0, (self.inputs, -1)) + self.bias.weight[domain]


class Context(NamedTuple):
    """What all steps of one sample read: a text, and where video and actions stand behind it."""

    text: Tensor  # [B, N, 2, L, M, K] keys and values of every layer
    seen: Tensor  # bool [B, 1, 1, L + T], False for padding of the text
    rotary: Rotary


class CosmosTransformer(nn.Module):
    """Text -> keys and values; noisy video and actions -> their velocities."""

    def __init__(self, sizes: CosmosSizes):
        super().__init__()
        self.sizes, width = sizes, sizes.width
        patch = sizes.channels * sizes.patch**2
        self.embed_tokens = nn.Embedding(sizes.vocab, width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.depth))
        self.norm_moe_gen = ScaledRMSNorm(width, sizes.eps)
        self.proj_in, self.proj_out = nn.Linear(patch, width), nn.Linear(width, patch)
        self.time_embedder = nn.ModuleDict(
            {"linear_1": nn.Linear(TIME_FEATURES, width), "linear_2": nn.Linear(width, width)}
        )
        self.action_proj_in = DomainLinear(sizes.domains, sizes.action_dim, width)
        self.action_proj_out = DomainLinear(sizes.domains, width, sizes.action_dim)
        self.action_modality_embed = nn.Parameter(torch.empty(width))

    def rotary(self, positions: Tensor) -> Rotary:
        """positions [B, 3, T], fractions allowed."""
        return interleaved_rotary(positions, self.sizes.head_dim, self.sizes.theta, self.sizes.sections)

    def read(self, tokens: Tensor) -> Tensor:
        """Text [B, L], padded behind its end -> keys and values of every layer [B, N, 2, L, M, K]; once per prompt."""
        x, kept = self.embed_tokens(tokens), []
        rotary = self.rotary(torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), 3, -1))
        for layer in self.layers:
            x, own = layer.read(x, rotary)
            kept.append(torch.stack(own, dim=1))
        return torch.stack(kept, dim=1)

    def place(self, text: Tensor, mask: Tensor, scene: Scene) -> Context:
        """Keys and values of a text and its mask bool [B, L] -> what every step reads."""
        positions = place_tokens(self.sizes, scene, mask.sum(1))
        seen = torch.cat((mask, mask.new_ones(len(mask), positions.shape[2])), dim=1)
        return Context(text, seen[:, None, None], self.rotary(positions))

    def embed_time(self, time: int, device: torch.device) -> Tensor:
        """[D]."""
        half = TIME_FEATURES // 2
        frequency = torch.exp(torch.arange(half, device=device) * (-math.log(1e4) / half))
        angle = time * self.sizes.time_scale * frequency
        features = torch.cat((angle.cos(), angle.sin())).to(self.proj_in.weight.dtype)
        return self.time_embedder["linear_2"](silu(self.time_embedder["linear_1"](features)))

    def forward(
        self, video: Tensor, actions: Tensor, time: int, context: Context, scene: Scene
    ) -> tuple[Tensor, Tensor]:
        """video [B, C, F, h, w] and actions [B, R, A] at `time` -> their velocities, 0 where they are clean.

        Both float32, whatever the type of the weights.
        """
        dtype, noisy = self.proj_in.weight.dtype, self.noisy(scene, video.device)
        patches = self.cut(video.to(dtype))
        rows = self.action_proj_in(actions.to(dtype), scene.domain) + self.action_modality_embed
        x = torch.cat((self.proj_in(patches), rows), dim=1)
        x = x + self.embed_time(time, video.device) * noisy[:, None].to(dtype)
        for layer, kept in zip(self.layers, context.text.unbind(1), strict=True):
            x = layer.denoise(x, context.rotary, KeysValues(*kept.unbind(1)), context.seen)
        x = self.norm_moe_gen(x)
        count = patches.shape[1]
        flow = self.proj_out(x[:, :count]).float() * noisy[:count, None]
        moves = self.action_proj_out(x[:, count:], scene.domain).float() * noisy[count:, None]
        return self.join(flow, scene.grid, video.shape[-2:]), moves

    def noisy(self, scene: Scene, device: torch.device) -> Tensor:
        """[T] 1 for tokens to denoise, 0 for given ones."""
        frames, down, across = scene.grid
        flags = torch.ones(frames * down * across + scene.rows, device=device)
        flags[: scene.clean_frames * down * across] = 0.0
        flags[frames * down * across :][: scene.clean_rows] = 0.0
        return flags

    def cut(self, video: Tensor) -> Tensor:
        """[B, C, F, h, w] -> patches [B, T, patch patch C], odd sizes padded with zeros."""
        p = self.sizes.patch
        video = pad(video, (0, -video.shape[-1] % p, 0, -video.shape[-2] % p))
        x = video.unflatten(4, (-1, p)).unflatten(3, (-1, p))  # B, C, F, r, p, c, q
        return x.permute(0, 2, 3, 5, 4, 6, 1).flatten(4).flatten(1, 3)

    def join(self, patches: Tensor, grid: tuple[int, int, int], size: tuple[int, int]) -> Tensor:
        """The inverse of `cut`."""
        p = self.sizes.patch
        x = patches.unflatten(1, grid).unflatten(4, (p, p, self.sizes.channels))  # B, F, r, c, p, q, C
        x = x.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4)
        return x[..., : size[0], : size[1]]
