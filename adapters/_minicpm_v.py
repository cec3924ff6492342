"""MiniCPM-V 4.6 as a backbone: a SigLIP tower that merges patches half-way and at its end, before Qwen3.5.

    half-way   x = x + attend(LN(x)) inside windows of 2 x 2;  x = mean(x) + W2 gelu(W1 LN([x x x x]))
    at the end W2 gelu(W1 LN([x x x x]))

Sixteen patches become one token. Names of members are those of the files. P patches, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from phyai_adapters._qwen3_5 import HybridSizes, HybridText
from phyai_core.layers.transformer import linear_gelu, project_and_norm

WINDOW = 2


@dataclass(frozen=True)
class TowerSizes:
    """Sizes of the tower. `merge_after`: the layer behind which patches merge."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    patch: int
    positions: int  # of the learned table, a square
    eps: float
    merge_after: int
    out_width: int


def read_tower_sizes(config: Mapping[str, Any], merge_after: int, out_width: int) -> TowerSizes:
    """Of a vision_config."""
    return TowerSizes(
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        mlp_width=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        patch=config["patch_size"],
        positions=(config["image_size"] // config["patch_size"]) ** 2,
        eps=config["layer_norm_eps"],
        merge_after=merge_after,
        out_width=out_width,
    )


class Attention(nn.Module):
    """Every token of a sequence sees every other."""

    def __init__(self, sizes: TowerSizes):
        super().__init__()
        self.num_heads = sizes.num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, P, D] -> what the output projection takes, [B, P, D]."""
        parts = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self._parts)
        return scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)

    @property
    def _parts(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj


class FeedForward(nn.Module):
    def __init__(self, sizes: TowerSizes):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(sizes.width, sizes.mlp_width), nn.Linear(sizes.mlp_width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(x, self.fc1))


class Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, sizes: TowerSizes):
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (nn.LayerNorm(sizes.width, eps=sizes.eps) for _ in range(2))
        self.self_attn, self.mlp = Attention(sizes), FeedForward(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, P, D] -> [B, P, D]."""
        mixed = self.self_attn(self.layer_norm1(x))
        x, normed = project_and_norm(x, mixed, self.self_attn.out_proj, self.layer_norm2)
        return x + self.mlp(normed)


def gather_windows(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """[B, P, D] row by row over the grid -> [B, P / 4, 4, D]."""
    x = x.unflatten(1, (grid[0] // WINDOW, WINDOW, grid[1] // WINDOW, WINDOW)).transpose(2, 3)
    return x.flatten(3, 4).flatten(1, 2)


class WindowMerger(nn.Module):
    """Half-way: attention inside windows, then one token for each."""

    def __init__(self, sizes: TowerSizes):
        super().__init__()
        joined, inner = sizes.width * WINDOW**2, sizes.mlp_width * WINDOW**2
        self.layer_norm1, self.self_attn = nn.LayerNorm(sizes.width, eps=sizes.eps), Attention(sizes)
        self.pre_norm = nn.LayerNorm(joined, eps=sizes.eps)
        self.linear_1, self.linear_2 = nn.Linear(joined, inner), nn.Linear(inner, sizes.width)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, P, D] -> [B, P / 4, D]."""
        windows = gather_windows(x, grid)
        batch, count = windows.shape[:2]
        flat = windows.flatten(0, 1)
        flat = flat + self.self_attn.out_proj(self.self_attn(self.layer_norm1(flat)))
        inner = linear_gelu(self.pre_norm(flat.flatten(1)), self.linear_1)
        return (flat.mean(1) + self.linear_2(inner)).unflatten(0, (batch, count))


class EndMerger(nn.Module):
    """At the end: four tokens to one of the language model's width."""

    def __init__(self, sizes: TowerSizes):
        super().__init__()
        joined = sizes.width * WINDOW**2
        self.pre_norm = nn.LayerNorm(joined, eps=sizes.eps)
        self.linear_1, self.linear_2 = nn.Linear(joined, joined), nn.Linear(joined, sizes.out_width)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, P, D] -> [B, P / 4, out]."""
        return self.linear_2(gelu(self.linear_1(self.pre_norm(gather_windows(x, grid).flatten(2)))))


class Tower(nn.Module):
    """Patches of images of one size -> tokens, a quarter as many."""

    def __init__(self, sizes: TowerSizes):
        super().__init__()
        self.sizes = sizes
        patch, table = nn.Linear(3 * sizes.patch**2, sizes.width), nn.Embedding(sizes.positions, sizes.width)
        self.embeddings = nn.ModuleDict({"patch_embedding": patch, "position_embedding": table})
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(Layer(sizes) for _ in range(sizes.depth))})
        self.vit_merger = WindowMerger(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.width, eps=sizes.eps)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """patches [B, P, 3 patch patch] row by row over the grid -> [B, P / 4, D]."""
        x = self.embeddings["patch_embedding"](patches) + self._positions(grid)
        for index, layer in enumerate(self.encoder["layers"]):
            x = layer(x)
            if index == self.sizes.merge_after:
                x = self.vit_merger(x, grid)
        return self.post_layernorm(x)

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        """[P, D]: the nearest entry of the table for each patch."""
        side = math.isqrt(self.sizes.positions)
        table = self.embeddings["position_embedding"].weight
        rows, columns = (torch.arange(count, device=table.device) * side // count for count in grid)
        return table[(rows[:, None] * side + columns).flatten()]


class MiniCpmV(nn.Module):
    """Tokens and patches -> hidden states of the language model."""

    def __init__(self, tower: TowerSizes, text: HybridSizes):
        super().__init__()
        self.vision_tower = Tower(tower)
        self.merger = nn.ModuleDict({"mlp": nn.ModuleList([EndMerger(tower)])})
        self.language_model = HybridText(text)

    def see(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """patches [B, P, .] -> [B, P / 16, D]."""
        x = self.vision_tower(patches, grid)
        return self.merger["mlp"][0](x, (grid[0] // WINDOW, grid[1] // WINDOW))

    def embed(self, tokens: Tensor, is_image: Tensor, images: Tensor) -> Tensor:
        """tokens and is_image [B, T], images [B, I, D] in the order of their tokens -> embeddings [B, T, D]."""
        x = self.language_model.embed_tokens(tokens)
        slot = (is_image.cumsum(1) - 1).clamp(min=0)[..., None].expand_as(x)
        return torch.where(is_image[..., None], images.gather(1, slot), x)


def cut_rows(images: Tensor, patch: int) -> Tensor:
    """[B, 3, h, w] -> patches row by row, [B, P, 3 patch patch]."""
    x = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # B, 3, r, p, c, p
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def count_text(start: int, count: int, batch: int, device: torch.device) -> Tensor:
    """[B, 3, T] positions of a sequence that counts images like text."""
    return torch.arange(start, start + count, device=device).expand(batch, 3, -1)
