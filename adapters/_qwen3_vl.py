"""The Qwen3-VL backbone as policies use it: images into the token sequence, the first text layers, no final norm.

    vision   patches + interpolated positions; blocks with 2-D rotary positions; 2 x 2 patches merge into one token
    text     causal, rotary positions with three axes (time, row, column) interleaved over the frequencies

Outputs of some vision blocks, merged apart, are added at the image tokens behind the first text layers. Names of
members are those of the files. B batch, T tokens, P patches of an image, D width. Source: arXiv 2511.21631,
huggingface/transformers models/qwen3_vl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from phyai_core.layers.norm import ScaledRMSNorm
from phyai_core.layers.rotary import Rotary, rotate

MERGE = 2  # side of the square of patches that become one token
VISION_THETA, VISION_EPS = 1e4, 1e-6


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of the vision tower. `taps`: blocks whose output goes to the text layers too."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    positions: int  # of the learned table, a square
    patch: int
    frames: int  # a still image is repeated so often
    out_width: int
    taps: tuple[int, ...]


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


def read_vision_sizes(config: Mapping[str, Any]) -> VisionSizes:
    """Of a vision_config."""
    return VisionSizes(
        width=config["hidden_size"],
        depth=config["depth"],
        mlp_width=config["intermediate_size"],
        num_heads=config["num_heads"],
        positions=config["num_position_embeddings"],
        patch=config["patch_size"],
        frames=config["temporal_patch_size"],
        out_width=config["out_hidden_size"],
        taps=tuple(config["deepstack_visual_indexes"]),
    )


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


class VisionAttention(nn.Module):
    """Every patch of an image sees every other."""

    def __init__(self, sizes: VisionSizes):
        super().__init__()
        self.num_heads = sizes.num_heads
        self.qkv, self.proj = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """[B, P, D] -> [B, P, D]."""
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        parts = (part.transpose(1, 2) for part in (rotate(q, rotary), rotate(k, rotary), v))
        return self.proj(scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with a GELU (tanh) between them."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    """One pre-norm block."""

    def __init__(self, sizes: VisionSizes):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(sizes.width, eps=VISION_EPS) for _ in range(2))
        self.attn, self.mlp = VisionAttention(sizes), FeedForward(sizes.width, sizes.mlp_width)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """[B, P, D] -> [B, P, D]."""
        x = x + self.attn(self.norm1(x), rotary)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Four neighbouring patches -> one token. `late`: the norm is over all four."""

    def __init__(self, sizes: VisionSizes, late: bool):
        super().__init__()
        inner = sizes.width * MERGE**2
        self.inner, self.late = inner, late
        self.norm = nn.LayerNorm(inner if late else sizes.width, eps=VISION_EPS)
        self.linear_fc1, self.linear_fc2 = nn.Linear(inner, inner), nn.Linear(inner, sizes.out_width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, P, D] -> [B, P / 4, out]."""
        joined = (len(x), -1, self.inner)
        x = self.norm(x.reshape(joined)) if self.late else self.norm(x).reshape(joined)
        return self.linear_fc2(gelu(self.linear_fc1(x)))


class VisionTower(nn.Module):
    """Images of one size, cut into patches in the order in which they merge. `grid`: rows and columns of patches."""

    def __init__(self, sizes: VisionSizes):
        super().__init__()
        self.sizes = sizes
        inputs = 3 * sizes.frames * sizes.patch**2
        self.patch_embed = nn.ModuleDict({"proj": nn.Linear(inputs, sizes.width)})
        self.pos_embed = nn.Embedding(sizes.positions, sizes.width)
        self.blocks = nn.ModuleList(VisionBlock(sizes) for _ in range(sizes.depth))
        self.merger = Merger(sizes, late=False)
        self.deepstack_merger_list = nn.ModuleList(Merger(sizes, late=True) for _ in sizes.taps)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
        """patches [B, P, 3 frames patch patch] -> tokens [B, P / 4, out], and the same of every tap."""
        order = merge_order(grid, patches.device)
        x = self.patch_embed["proj"](patches) + self._positions(grid)[order]
        rotary, taps = self._rotary(grid[1], order), []
        for index, block in enumerate(self.blocks):
            x = block(x, rotary)
            if index in self.sizes.taps:
                taps.append(self.deepstack_merger_list[len(taps)](x))
        return self.merger(x), taps

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        """[P, D] row by row: the learned table, interpolated to the size of the image."""
        side, weight = math.isqrt(self.sizes.positions), self.pos_embed.weight
        table = weight.unflatten(0, (side, side))
        for axis, count in enumerate(grid):
            at = torch.linspace(0, side - 1, count, device=weight.device)
            low = at.long()
            share = (at - low).to(weight.dtype).reshape(-1, *[1] * (2 - axis))
            low_part, high_part = (table.index_select(axis, i) for i in (low, (low + 1).clamp(max=side - 1)))
            table = low_part * (1 - share) + high_part * share
        return table.flatten(0, 1)

    def _rotary(self, columns: int, order: Tensor) -> Rotary:
        """Half of the frequencies turn with the row, half with the column."""
        count = self.sizes.width // self.sizes.num_heads // 4
        frequency = VISION_THETA ** -(torch.arange(count, device=order.device) / count)
        angle = torch.cat([(axis[:, None] * frequency) for axis in (order // columns, order % columns)], dim=-1)
        return Rotary(angle.cos()[None, :, None], angle.sin()[None, :, None])


def merge_order(grid: tuple[int, int], device: torch.device) -> Tensor:
    """Row-by-row index of each patch in the order in which patches merge: by squares of 2 x 2, [P]."""
    rows, columns = grid
    index = torch.arange(rows * columns, device=device).reshape(rows // MERGE, MERGE, columns // MERGE, MERGE)
    return index.transpose(1, 2).flatten()


def cut_patches(images: Tensor, patch: int, frames: int) -> Tensor:
    """[B, 3, h, w] -> [B, P, 3 frames patch patch] in merge order."""
    rows, columns = images.shape[2] // patch, images.shape[3] // patch
    x = images.unflatten(3, (columns, patch)).unflatten(2, (rows, patch)).permute(0, 2, 4, 1, 3, 5)  # B, r, c, 3, p, p
    x = x.flatten(1, 2)[:, merge_order((rows, columns), images.device)]
    return x[:, :, :, None].expand(-1, -1, -1, frames, -1, -1).flatten(2)


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

    def forward(self, x: Tensor, rotary: Rotary, mask: Tensor) -> Tensor:
        """x [B, T, D], mask bool [B, 1, T, T] -> [B, T, D]. A query that sees nothing gives zeros."""
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, self.heads)), rotary)
        k = rotate(self.k_norm(self.k_proj(x).unflatten(-1, self.heads)), rotary)
        v = self.v_proj(x).unflatten(-1, self.heads)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


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

    def forward(self, x: Tensor, rotary: Rotary, mask: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


def interleaved_rotary(positions: Tensor, dim: int, theta: float, sections: tuple[int, int, int]) -> Rotary:
    """positions [B, 3, T] -> Rotary over `dim` elements; frequency i belongs to axis i % 3, while that has any left."""
    frequency = theta ** -(torch.arange(0, dim, 2, device=positions.device) / dim)
    angle = positions[..., None].float() * frequency  # [B, 3, T, dim / 2]
    chosen = angle[:, 0].clone()
    for axis in (1, 2):
        at = slice(axis, 3 * sections[axis], 3)
        chosen[..., at] = angle[:, axis, :, at]
    return Rotary(chosen.cos()[:, :, None], chosen.sin()[:, :, None])


class Qwen3Vl(nn.Module):
    """Tokens and patches -> features of the last kept text layer."""

    def __init__(self, vision: VisionSizes, text: TextSizes):
        super().__init__()
        self.text = text
        self.visual = VisionTower(vision)
        layers = nn.ModuleList(TextLayer(text) for _ in range(text.depth))
        self.language_model = nn.ModuleDict({"embed_tokens": nn.Embedding(text.vocab, text.width), "layers": layers})

    def forward(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, is_image: Tensor, patches: Tensor, grid: tuple[int, int]
    ) -> Tensor:
        """tokens, mask, is_image [B, T], positions [B, 3, T], patches [B, C, P, W] -> [B, T, D] before the final norm.

        The images fill the image tokens in their order; there are as many as tokens wait for them.
        """
        batch = len(patches)
        images, taps = self.visual(patches.flatten(0, 1), grid)
        own, *taps = (part.reshape(batch, -1, part.shape[-1]) for part in (images, *taps))
        slot = (is_image.cumsum(1) - 1).clamp(min=0)[..., None]  # which image token each position takes, if it is one
        x = self.language_model["embed_tokens"](tokens)
        x = torch.where(is_image[..., None], own.gather(1, slot.expand(-1, -1, own.shape[-1])), x)
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()
        seen = (causal & mask[:, None, :])[:, None]
        rotary = interleaved_rotary(positions, self.text.head_dim, self.text.theta, self.text.sections)
        for index, layer in enumerate(self.language_model["layers"]):
            if 0 < index <= len(taps):
                added = taps[index - 1].gather(1, slot.expand(-1, -1, x.shape[-1]))
                x = torch.where(is_image[..., None], x + added, x)
            x = layer(x, rotary, seen)
        return x


def count_positions(tokens: Tensor, mask: Tensor, image_token: int, grid: tuple[int, int]) -> Tensor:
    """[B, T] -> int64 [B, 3, T]: text counts on; an image spans the rows and columns of its `grid` of tokens.

    Padding has position 1, as upstream; nothing reads it.
    """
    positions = torch.ones(len(tokens), 3, tokens.shape[1], dtype=torch.int64)
    cell = torch.arange(grid[0] * grid[1])
    image = torch.stack((torch.zeros_like(cell), cell // grid[1], cell % grid[1]))
    for row, (ids, real) in enumerate(zip(tokens.tolist(), mask.tolist(), strict=True)):
        start, at = 0, 0
        while at < len(ids):
            if not real[at]:
                at += 1
            elif ids[at] != image_token:
                positions[row, :, at] = start
                start, at = start + 1, at + 1
            else:
                positions[row, :, at : at + len(cell)] = start + image
                start, at = start + max(grid), at + len(cell)
    return positions
