"""The SigLIP vision tower: patches, learned positions, pre-norm blocks with biases, final norm, no pooling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phyai_core.layers.attention import attend
from phyai_core.layers.transformer import linear_gelu, project_and_norm

EPS = 1e-6


@dataclass(frozen=True)
class SiglipSizes:
    """Sizes of the tower; images are square, `image_size` a multiple of `patch_size`."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    image_size: int
    patch_size: int = 14

    @property
    def tokens(self) -> int:
        """Tokens per image."""
        return (self.image_size // self.patch_size) ** 2


class SiglipBlock(nn.Module):
    """One pre-norm transformer block; q, k and v are one matrix."""

    def __init__(self, sizes: SiglipSizes, dtype: torch.dtype):
        super().__init__()
        self.num_heads = sizes.num_heads
        self.norm1 = nn.LayerNorm(sizes.width, eps=EPS, dtype=dtype)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, dtype=dtype)
        self.out = nn.Linear(sizes.width, sizes.width, dtype=dtype)
        self.norm2 = nn.LayerNorm(sizes.width, eps=EPS, dtype=dtype)
        self.fc1 = nn.Linear(sizes.width, sizes.mlp_width, dtype=dtype)
        self.fc2 = nn.Linear(sizes.mlp_width, sizes.width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x, normed = project_and_norm(x, attend(q, k, v), self.out, self.norm2)
        return x + self.fc2(linear_gelu(normed, self.fc1))


class SiglipTower(nn.Module):
    """Images to tokens. Patch embedding and positions stay float32, the blocks run in `dtype`."""

    def __init__(self, sizes: SiglipSizes, dtype: torch.dtype):
        super().__init__()
        self.sizes, self.dtype = sizes, dtype
        self.patch = nn.Linear(3 * sizes.patch_size**2, sizes.width, dtype=torch.float32)
        self.position = nn.Parameter(torch.empty(sizes.tokens, sizes.width, dtype=torch.float32))
        self.blocks = nn.ModuleList(SiglipBlock(sizes, dtype) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(sizes.width, eps=EPS, dtype=dtype)

    def forward(self, images: Tensor) -> Tensor:
        """images [B, 3, h, w] float32 in [-1, 1] -> tokens [B, T, D] in the tower's type."""
        x = self.embed(images).to(self.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def embed(self, images: Tensor) -> Tensor:
        """What the blocks begin with: patches and positions, [B, T, D] float32."""
        return self.patch(self._cut(images)) + self.position

    def _cut(self, images: Tensor) -> Tensor:
        """[B, 3, h, w] -> patches row by row [B, T, 3 p p]; a strided convolution as one matrix product."""
        side, patch = self.sizes.image_size // self.sizes.patch_size, self.sizes.patch_size
        grid = images.reshape(-1, 3, side, patch, side, patch).permute(0, 2, 4, 1, 3, 5)
        return grid.reshape(images.shape[0], side * side, 3 * patch * patch)
