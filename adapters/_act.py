"""The network of ACT: camera features and state through an encoder, H learned queries through a decoder.

    tokens = [latent | state | pixels of camera 1, row by row | camera 2 | ...]
    encoder layer   x = norm1(x + attend(x + p, x + p, x));  x = norm2(x + W2 relu(W1 x))
    decoder layer   x = norm1(x + attend(x + q, x + q, x));  x = norm2(x + attend(x + q, m + p, m));  x = norm3(x + ...)

The latent is zero at inference, so its token is the bias of its projection. Names of members are those of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from phyai_core.layers.attention import attend
from phyai_core.layers.resnet import FrozenNorm, ResNet, ResNetSizes

TEMPERATURE = 1e4


@dataclass(frozen=True)
class ActSizes:
    """Sizes of the network."""

    resnet: ResNetSizes
    width: int
    num_heads: int
    mlp_width: int
    encoder_depth: int
    decoder_depth: int
    latent: int
    action_horizon: int
    state_dim: int
    action_dim: int


class Attention(nn.Module):
    """Multi-head attention whose three input projections are one matrix."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Q, D], k and v [B, S, D] -> [B, Q, D]."""
        parts = zip((q, k, v), self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
        q, k, v = (linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)) for x, weight, bias in parts)
        return self.out_proj(attend(q, k, v))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by its norm."""

    def __init__(self, sizes: ActSizes):
        super().__init__()
        width = sizes.width
        self.self_attn = Attention(width, sizes.num_heads)
        self.linear1, self.linear2 = nn.Linear(width, sizes.mlp_width), nn.Linear(sizes.mlp_width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(relu(self.linear1(x)))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """x [B, T, D], position [T, D] -> [B, T, D]."""
        placed = x + position
        x = self.norm1(x + self.self_attn(placed, placed, x))
        return self.norm2(x + self.feed_forward(x))


class DecoderLayer(EncoderLayer):
    """With attention to the encoder's output in between."""

    def __init__(self, sizes: ActSizes):
        super().__init__(sizes)
        self.multihead_attn = Attention(sizes.width, sizes.num_heads)
        self.norm3 = nn.LayerNorm(sizes.width)

    def forward(self, x: Tensor, query: Tensor, memory: Tensor, position: Tensor) -> Tensor:
        """x [B, H, D], query [H, D], memory [B, T, D], position [T, D] -> [B, H, D]."""
        placed = x + query
        x = self.norm1(x + self.self_attn(placed, placed, x))
        x = self.norm2(x + self.multihead_attn(x + query, memory + position, memory))
        return self.norm3(x + self.feed_forward(x))


def _stack(layers: Sequence[nn.Module], **more: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"layers": nn.ModuleList(layers), **more})


class ActNetwork(nn.Module):
    """All weights that inference needs."""

    def __init__(self, sizes: ActSizes):
        super().__init__()
        self.sizes = sizes
        width = sizes.width
        self.backbone = ResNet(sizes.resnet, FrozenNorm)
        self.encoder_img_feat_input_proj = nn.Conv2d(sizes.resnet.channels, width, 1)
        self.encoder_robot_state_input_proj = nn.Linear(sizes.state_dim, width)
        self.encoder_latent_input_proj = nn.Linear(sizes.latent, width)
        self.encoder_1d_feature_pos_embed = nn.Embedding(2, width)
        self.encoder = _stack([EncoderLayer(sizes) for _ in range(sizes.encoder_depth)])
        self.decoder = _stack([DecoderLayer(sizes) for _ in range(sizes.decoder_depth)], norm=nn.LayerNorm(width))
        self.decoder_pos_embed = nn.Embedding(sizes.action_horizon, width)
        self.action_head = nn.Linear(width, sizes.action_dim)

    def embed(self, images: Sequence[Tensor], state: Tensor) -> Tensor:
        """Normalised images [B, 3, h, w] and state [B, S] -> tokens [B, T, D]."""
        latent = self.encoder_latent_input_proj.bias.expand(len(state), -1)
        tokens = [torch.stack((latent, self.encoder_robot_state_input_proj(state)), dim=1)]
        maps = (self.encoder_img_feat_input_proj(self.backbone(image)) for image in images)
        return torch.cat([*tokens, *(features.flatten(2).transpose(1, 2) for features in maps)], dim=1)

    def encode(self, tokens: Tensor, position: Tensor) -> Tensor:
        """tokens [B, T, D] at positions [T, D] -> memory [B, T, D]."""
        for layer in self.encoder["layers"]:
            tokens = layer(tokens, position)
        return tokens

    def decode(self, memory: Tensor, position: Tensor) -> Tensor:
        """memory [B, T, D] -> what the action head reads, [B, H, D]."""
        query = self.decoder_pos_embed.weight
        x = query.new_zeros(len(memory), *query.shape)
        for layer in self.decoder["layers"]:
            x = layer(x, query, memory, position)
        return self.decoder["norm"](x)


def map_positions(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """[height * width, dim]: sines and cosines of the row (first half) and the column of each pixel of a map.

    Rows and columns count from 1 and are spread over one turn.
    """
    half = dim // 2
    index = torch.arange(half, device=device, dtype=torch.float32)
    frequency = TEMPERATURE ** (2 * torch.div(index, 2, rounding_mode="floor") / half)
    parts = []
    for count in (height, width):
        turn = torch.arange(1, count + 1, device=device, dtype=torch.float32) / (count + 1e-6) * (2 * torch.pi)
        angle = turn[:, None] / frequency
        parts.append(torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=-1).flatten(1))
    rows = parts[0][:, None].expand(height, width, half)
    columns = parts[1][None].expand(height, width, half)
    return torch.cat((rows, columns), dim=-1).reshape(height * width, dim)
