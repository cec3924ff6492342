"""The vision tower of Qwen3-VL: patches, interpolated positions, blocks with 2-D rotary positions, 2 x 2 merging.

Names of members are those of the files. B images of one size, P patches, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from phyai_core.layers.rotary import Rotary, rotate
from phyai_core.layers.transformer import linear_gelu, project_and_norm

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


class VisionAttention(nn.Module):
    """Every patch of an image sees every other."""

    def __init__(self, sizes: VisionSizes):
        super().__init__()
        self.num_heads = sizes.num_heads
        self.qkv, self.proj = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """[B, P, D] -> what the projection takes, [B, P, D]."""
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        parts = (part.transpose(1, 2) for part in (rotate(q, rotary), rotate(k, rotary), v))
        return scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """Two linear layers with a GELU (tanh) between them."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(linear_gelu(x, self.linear_fc1))


class VisionBlock(nn.Module):
    """One pre-norm block."""

    def __init__(self, sizes: VisionSizes):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(sizes.width, eps=VISION_EPS) for _ in range(2))
        self.attn, self.mlp = VisionAttention(sizes), FeedForward(sizes.width, sizes.mlp_width)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """[B, P, D] -> [B, P, D]."""
        x, normed = project_and_norm(x, self.attn(self.norm1(x), rotary), self.attn.proj, self.norm2)
        return x + self.mlp(normed)


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
