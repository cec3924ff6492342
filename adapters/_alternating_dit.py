"""The diffusion transformer of GR00T and its relatives: blocks that look at features and at the tokens, in turn.

    x = x + attend(LN(x) (1 + scale) + shift);   x = x + W2 gelu(W1 LN(x));   scale, shift = W silu(time)

Even blocks attend to features, one after the other under the masks that are given; odd blocks attend to the tokens
themselves. Encoders and decoders of several robots are banks of layers, one each. Names of members are those of files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from phyai_core.layers.attention import attend
from phyai_core.layers.gemma import KeysValues
from phyai_core.layers.transformer import linear_gelu, modulated_layer_norm, project_and_norm

TIME_FEATURES = 256
OUT_EPS = 1e-6


@dataclass(frozen=True)
class DitSizes:
    """Sizes of the transformer."""

    features: int  # width of what the even blocks look at
    num_heads: int
    head_dim: int
    depth: int
    output: int

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

    def gather(self, x: Tensor, given: KeysValues, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D], mask bool [B, S] -> what the output projection takes, [B, T, D]."""
        q = self.to_q(x).unflatten(-1, (self.num_heads, -1))
        return attend(q, given.k, given.v, mask)

    def forward(self, x: Tensor, given: KeysValues, mask: Tensor | None = None) -> Tensor:
        """As `gather`, projected."""
        return self.to_out[0](self.gather(x, given, mask))


class FeedForward(nn.Module):
    """Four times as wide inside, GELU (tanh)."""

    def __init__(self, width: int):
        super().__init__()
        first = nn.ModuleDict({"proj": nn.Linear(width, 4 * width)})
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](linear_gelu(x, self.net[0]["proj"]))


class DitBlock(nn.Module):
    """One block of the transformer; `inputs`: width of what it attends to."""

    def __init__(self, sizes: DitSizes, inputs: int):
        super().__init__()
        width = sizes.width
        self.norm1 = nn.ModuleDict({"linear": nn.Linear(width, 2 * width)})
        self.attn1, self.ff = Attention(width, inputs, sizes.num_heads), FeedForward(width)

    def modulation(self, time: Tensor) -> Tensor:
        """[n, D] -> 1 + scale and shift [n, 2 D]."""
        scale, shift = self.norm1["linear"](silu(time)).chunk(2, dim=-1)
        return torch.cat((1 + scale, shift), dim=-1)

    def forward(self, x: Tensor, modulation: Tensor, given: KeysValues | None, mask: Tensor | None) -> Tensor:
        """x [B, T, D], modulation [B, 1, 2 D]; `given` None: attend to x itself."""
        scale, shift = modulation.chunk(2, dim=-1)
        normed = modulated_layer_norm(x, scale, shift)
        mixed = self.attn1.gather(normed, self.attn1.project(normed) if given is None else given, mask)
        x, normed = project_and_norm(x, mixed, self.attn1.to_out[0])
        return x + self.ff(normed)


class Context(NamedTuple):
    """What the even blocks look at: keys and values of each, and masks bool [B, S] that they take in turn."""

    keys_values: tuple[KeysValues, ...]
    masks: tuple[Tensor, ...]


class TimeTables(NamedTuple):
    """What depends on the step alone, a row for each."""

    features: Tensor  # [n, D] sines and cosines for an encoder of actions
    blocks: Tensor  # [L, n, 2 D], 1 + scale and shift
    out: Tensor  # [n, 2 D]


class Transformer(nn.Module):
    """The blocks, and what time does to them."""

    def __init__(self, sizes: DitSizes):
        super().__init__()
        width = sizes.width
        embedder = nn.ModuleDict({"linear_1": nn.Linear(TIME_FEATURES, width), "linear_2": nn.Linear(width, width)})
        self.timestep_encoder = nn.ModuleDict({"timestep_embedder": embedder})
        self.transformer_blocks = nn.ModuleList(
            DitBlock(sizes, width if index % 2 else sizes.features) for index in range(sizes.depth)
        )
        self.proj_out_1, self.proj_out_2 = nn.Linear(width, 2 * width), nn.Linear(width, sizes.output)

    def tabulate(self, steps: Sequence[int]) -> TimeTables:
        """Everything that depends on the discrete times `steps` (n of them)."""
        weight = self.proj_out_1.weight
        half, times = weight.shape[1] // 2, torch.tensor(steps, device=weight.device)
        angle = times[:, None] * torch.exp(torch.arange(half, device=weight.device) * (-math.log(1e4) / half))
        features = torch.cat((angle.sin(), angle.cos()), dim=-1).to(weight.dtype)
        time = self._embed(times)
        blocks = torch.stack([block.modulation(time) for block in self.transformer_blocks])
        return TimeTables(features, blocks, self.proj_out_1(silu(time)))

    def _embed(self, times: Tensor) -> Tensor:
        """[n] -> [n, D]."""
        half = TIME_FEATURES // 2
        angle = times[:, None] * torch.exp(torch.arange(half, device=times.device) * (-math.log(1e4) / (half - 1)))
        embedder = self.timestep_encoder["timestep_embedder"]
        features = torch.cat((angle.cos(), angle.sin()), dim=-1).to(self.proj_out_1.weight.dtype)
        return embedder["linear_2"](silu(embedder["linear_1"](features)))

    def look(self, features: Tensor, *masks: Tensor) -> Context:
        """Features [B, S, D'] and masks bool [B, S] -> Context."""
        even = self.transformer_blocks[::2]
        return Context(tuple(block.attn1.project(features) for block in even), masks)

    def hidden(self, x: Tensor, context: Context, tables: TimeTables, rows: Tensor):
        """x [B, T, D] at rows [B] of the tables -> the hidden state before each block and behind the last."""
        modulations = tables.blocks[:, rows][:, :, None]
        for index, block in enumerate(self.transformer_blocks):
            yield x
            given, mask = None, None
            if index % 2 == 0:
                given, mask = context.keys_values[index // 2], context.masks[index // 2 % len(context.masks)]
            x = block(x, modulations[index], given, mask)
        yield x

    def forward(self, x: Tensor, context: Context, tables: TimeTables, rows: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, output]."""
        *_, x = self.hidden(x, context, tables, rows)
        shift, scale = tables.out[rows][:, None].chunk(2, dim=-1)
        return self.proj_out_2(modulated_layer_norm(x, 1 + scale, shift, OUT_EPS))


class Layer(NamedTuple):
    """One linear layer per robot of a batch."""

    weight: Tensor  # [B, in, out]
    bias: Tensor  # [B, 1, out]

    def apply(self, x: Tensor) -> Tensor:
        """[B, T, in] -> [B, T, out]."""
        return torch.baddbmm(self.bias, x, self.weight)


class Bank(nn.Module):
    """One linear layer per embodiment, weights [E, in, out]."""

    def __init__(self, embodiments: int, inputs: int, outputs: int):
        super().__init__()
        self.W = nn.Parameter(torch.empty(embodiments, inputs, outputs))
        self.b = nn.Parameter(torch.empty(embodiments, outputs))

    def pick(self, embodiment: Tensor) -> Layer:
        """The layer of each robot in the batch, int64 [B]."""
        return Layer(self.W[embodiment], self.b[embodiment][:, None])


def make_banks(embodiments: int, **layers: tuple[int, int]) -> nn.ModuleDict:
    """A bank of each name, of these numbers of inputs and outputs."""
    return nn.ModuleDict({name: Bank(embodiments, *sizes) for name, sizes in layers.items()})


def pick_layers(banks: nn.ModuleDict, embodiment: Tensor) -> tuple[Layer, ...]:
    """The layers of each robot in the batch, in the order of the banks."""
    return tuple(bank.pick(embodiment) for bank in banks.values())


def embed_actions(layers: Sequence[Layer], actions: Tensor, features: Tensor) -> Tensor:
    """Three layers, actions [B, H, A] and time features [B, D] -> tokens [B, H, D]."""
    first, second, third = layers
    x = first.apply(actions)
    return third.apply(silu(second.apply(torch.cat((x, features[:, None].expand_as(x)), dim=-1))))
