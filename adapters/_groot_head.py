"""The action head of GR00T N1.7: a diffusion transformer over [state | actions] that looks at the backbone's features.

Even blocks attend to the features, in turn to those of text and of images; odd blocks attend to the tokens themselves.

    x = x + attend(LN(x) (1 + scale) + shift);   x = x + W2 gelu(W1 LN(x));   scale, shift = W silu(time)

Encoders of state and actions and the decoder exist once per embodiment. Names of members are those of the files.
Source: arXiv 2503.14734, NVIDIA/Isaac-GR00T gr00t/model/gr00t_n1d7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, relu, silu

from phyai_core.layers.attention import attend
from phyai_core.layers.gemma import KeysValues

TIME_FEATURES, BUCKETS = 256, 1000
OUT_EPS = 1e-6


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of the head."""

    features: int  # width of the backbone
    hidden: int  # of the encoders and the decoder
    num_heads: int
    head_dim: int
    depth: int
    output: int
    self_heads: int
    self_dim: int
    self_depth: int
    state_dim: int
    latent_dim: int
    embodiments: int
    positions: int

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim


class Attention(nn.Module):
    """Multi-head attention with biases; keys and values may come from a sequence of another width."""

    def __init__(self, width: int, inputs: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.to_q, self.to_k, self.to_v = nn.Linear(width, width), nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def project(self, given: Tensor) -> KeysValues:
        """[B, S, D'] -> keys and values [B, S, N, K]."""
        return KeysValues(*(part(given).unflatten(-1, (self.num_heads, -1)) for part in (self.to_k, self.to_v)))

    def forward(self, x: Tensor, given: KeysValues, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D], mask bool [B, S] -> [B, T, D]."""
        q = self.to_q(x).unflatten(-1, (self.num_heads, -1))
        return self.to_out[0](attend(q, given.k, given.v, mask))


class FeedForward(nn.Module):
    """Four times as wide inside, GELU (tanh)."""

    def __init__(self, width: int):
        super().__init__()
        first = nn.ModuleDict({"proj": nn.Linear(width, 4 * width)})
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](gelu(self.net[0]["proj"](x), approximate="tanh"))


class FeatureBlock(nn.Module):
    """One plain block over the backbone's features."""

    def __init__(self, sizes: HeadSizes):
        super().__init__()
        width = sizes.features
        self.norm1, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn1, self.ff = Attention(width, width, sizes.self_heads), FeedForward(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, S, D], mask bool [B, S] -> [B, S, D]."""
        normed = self.norm1(x)
        x = x + self.attn1(normed, self.attn1.project(normed), mask)
        return x + self.ff(self.norm3(x))


class DitBlock(nn.Module):
    """One block of the transformer; `inputs`: width of what it attends to."""

    def __init__(self, sizes: HeadSizes, inputs: int):
        super().__init__()
        width = sizes.width
        self.norm1 = nn.ModuleDict({"linear": nn.Linear(width, 2 * width)})
        self.attn1, self.ff = Attention(width, inputs, sizes.num_heads), FeedForward(width)

    def modulation(self, time: Tensor) -> Tensor:
        """[n, D] -> scale and shift [n, 2 D]."""
        return self.norm1["linear"](silu(time))

    def forward(self, x: Tensor, modulation: Tensor, given: KeysValues | None, mask: Tensor | None) -> Tensor:
        """x [B, T, D], modulation [B, 1, 2 D]; `given` None: attend to x itself."""
        scale, shift = modulation.chunk(2, dim=-1)
        normed = layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
        x = x + self.attn1(normed, self.attn1.project(normed) if given is None else given, mask)
        return x + self.ff(layer_norm(x, x.shape[-1:]))


class Bank(nn.Module):
    """One linear layer per embodiment, weights [E, in, out]."""

    def __init__(self, embodiments: int, inputs: int, outputs: int):
        super().__init__()
        self.W = nn.Parameter(torch.empty(embodiments, inputs, outputs))
        self.b = nn.Parameter(torch.empty(embodiments, outputs))

    def pick(self, embodiment: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [B, in, out] and biases [B, 1, out] of each robot in the batch."""
        return self.W[embodiment], self.b[embodiment][:, None]


class Picked(NamedTuple):
    """The layers of one embodiment per robot, (weight, bias) each."""

    actions: tuple[tuple[Tensor, Tensor], ...]  # three layers
    decoder: tuple[tuple[Tensor, Tensor], ...]  # two


class TimeTables(NamedTuple):
    """What depends on the step alone; row k belongs to step k of N."""

    features: Tensor  # [N + 1, D] sines and cosines for the action encoder
    blocks: Tensor  # [L, N + 1, 2 D]
    out: Tensor  # [N + 1, 2 D]


class Prefix(NamedTuple):
    """What every denoise step reads; lifetime OBSERVATION."""

    keys_values: tuple[KeysValues, ...]  # of the even blocks
    text_mask: Tensor  # bool [B, S]
    image_mask: Tensor
    state: Tensor  # [B, 1, D]
    picked: Picked


class Transformer(nn.Module):
    """The blocks, and what time does to them."""

    def __init__(self, sizes: HeadSizes):
        super().__init__()
        width = sizes.width
        embedder = nn.ModuleDict({"linear_1": nn.Linear(TIME_FEATURES, width), "linear_2": nn.Linear(width, width)})
        self.timestep_encoder = nn.ModuleDict({"timestep_embedder": embedder})
        self.transformer_blocks = nn.ModuleList(
            DitBlock(sizes, width if index % 2 else sizes.features) for index in range(sizes.depth)
        )
        self.proj_out_1, self.proj_out_2 = nn.Linear(width, 2 * width), nn.Linear(width, sizes.output)

    def embed_time(self, steps: Tensor) -> Tensor:
        """Discrete times [n] -> [n, D]."""
        half = TIME_FEATURES // 2
        angle = steps[:, None] * torch.exp(torch.arange(half, device=steps.device) * (-math.log(1e4) / (half - 1)))
        embedder = self.timestep_encoder["timestep_embedder"]
        features = torch.cat((angle.cos(), angle.sin()), dim=-1).to(self.proj_out_1.weight.dtype)
        return embedder["linear_2"](silu(embedder["linear_1"](features)))

    def layers(self, x: Tensor, prefix: Prefix, modulations: Tensor):
        """x [B, T, D], modulations [L, B, 1, 2 D] -> the hidden state before each block and behind the last."""
        for index, block in enumerate(self.transformer_blocks):
            yield x
            even = index % 2 == 0
            mask = (prefix.text_mask, prefix.image_mask)[index // 2 % 2] if even else None
            x = block(x, modulations[index], prefix.keys_values[index // 2] if even else None, mask)
        yield x


class ActionHead(nn.Module):
    """All weights behind the backbone."""

    def __init__(self, sizes: HeadSizes):
        super().__init__()
        self.sizes = sizes
        count, width, hidden = sizes.embodiments, sizes.width, sizes.hidden
        self.vlln = nn.LayerNorm(sizes.features)
        blocks = nn.ModuleList(FeatureBlock(sizes) for _ in range(sizes.self_depth))
        self.vl_self_attention = nn.ModuleDict({"transformer_blocks": blocks})
        self.model = Transformer(sizes)
        self.state_encoder = _banks(count, layer1=(sizes.state_dim, hidden), layer2=(hidden, width))
        self.action_encoder = _banks(count, W1=(sizes.latent_dim, width), W2=(2 * width, width), W3=(width, width))
        self.action_decoder = _banks(count, layer1=(sizes.output, hidden), layer2=(hidden, sizes.latent_dim))
        self.position_embedding = nn.Embedding(sizes.positions, width)

    def attend_features(self, features: Tensor, mask: Tensor) -> Tensor:
        """The backbone's features [B, S, D], mask bool [B, S] -> what the blocks look at."""
        x = self.vlln(features)
        for block in self.vl_self_attention["transformer_blocks"]:
            x = block(x, mask)
        return x

    def prepare(self, seen: Tensor, mask: Tensor, is_image: Tensor, state: Tensor, embodiment: Tensor) -> Prefix:
        """What `attend_features` gave, masks bool [B, S], state [B, 1, S'], embodiment int64 [B] -> Prefix."""
        first, second = (self.state_encoder[name].pick(embodiment) for name in ("layer1", "layer2"))
        even = [block for index, block in enumerate(self.model.transformer_blocks) if index % 2 == 0]
        return Prefix(
            keys_values=tuple(block.attn1.project(seen) for block in even),
            text_mask=mask & ~is_image,
            image_mask=mask & is_image,
            state=_apply(second, relu(_apply(first, state))),
            picked=Picked(*(tuple(b.pick(embodiment) for b in bank.values()) for bank in self._action_banks)),
        )

    @property
    def _action_banks(self) -> tuple[nn.ModuleDict, nn.ModuleDict]:
        return self.action_encoder, self.action_decoder

    def tabulate(self, count: int) -> TimeTables:
        """Everything that depends on the step, for N = `count` steps."""
        device = self.position_embedding.weight.device
        steps = torch.tensor([int(k / count * BUCKETS) for k in range(count + 1)], device=device)
        half = self.sizes.width // 2
        angle = steps[:, None] * torch.exp(torch.arange(half, device=device) * (-math.log(1e4) / half))
        time = self.model.embed_time(steps)
        blocks = torch.stack([block.modulation(time) for block in self.model.transformer_blocks])
        features = torch.cat((angle.sin(), angle.cos()), dim=-1).to(time.dtype)
        return TimeTables(features, blocks, self.model.proj_out_1(silu(time)))

    def embed_actions(self, prefix: Prefix, latents: Tensor, features: Tensor) -> Tensor:
        """latents [B, H, A'], time features [B, D] -> action tokens [B, H, D]."""
        first, second, third = prefix.picked.actions
        x = _apply(first, latents.to(first[0].dtype))
        x = silu(_apply(second, torch.cat((x, features[:, None].expand_as(x)), dim=-1)))
        return _apply(third, x) + self.position_embedding.weight[: latents.shape[1]]

    def hidden(self, prefix: Prefix, latents: Tensor, tables: TimeTables, rows: Tensor):
        """The hidden states [B, 1 + H, D] of step `rows` [B], before each block and behind the last."""
        tokens = self.embed_actions(prefix, latents, tables.features[rows])
        return self.model.layers(torch.cat((prefix.state, tokens), dim=1), prefix, tables.blocks[:, rows][:, :, None])

    def forward(self, prefix: Prefix, latents: Tensor, tables: TimeTables, rows: Tensor) -> Tensor:
        """Velocity [B, H, A']."""
        *_, x = self.hidden(prefix, latents, tables, rows)
        shift, scale = tables.out[rows][:, None].chunk(2, dim=-1)
        x = self.model.proj_out_2(layer_norm(x, x.shape[-1:], eps=OUT_EPS) * (1 + scale) + shift)
        first, second = prefix.picked.decoder
        return _apply(second, relu(_apply(first, x[:, -latents.shape[1] :])))


def _banks(embodiments: int, **layers: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: Bank(embodiments, *sizes) for name, sizes in layers.items()})


def _apply(layer: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return torch.baddbmm(layer[1], x, layer[0])
