"""The action head of GR00T N1.7: a diffusion transformer over [state | actions] that looks at the backbone's features.

Even blocks look at the features of text and of images, in turn. Encoders of state and actions and the decoder exist
once per embodiment. Names of members are those of the files. Source: arXiv 2503.14734, NVIDIA/Isaac-GR00T
gr00t/model/gr00t_n1d7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from phyai_adapters._alternating_dit import (
    Attention,
    Context,
    DitSizes,
    FeedForward,
    Layer,
    TimeTables,
    Transformer,
    embed_actions,
    make_banks,
    pick_layers,
)

BUCKETS = 1000


@dataclass(frozen=True)
class HeadSizes(DitSizes):
    """Sizes of the head."""

    hidden: int  # of the encoders and the decoder
    self_heads: int
    self_depth: int
    state_dim: int
    latent_dim: int
    embodiments: int
    positions: int


def read_head_sizes(config: Mapping[str, Any]) -> HeadSizes:
    """Of a config.json."""
    dit, vlm = config["diffusion_model_cfg"], config["vl_self_attention_cfg"]
    return HeadSizes(
        features=config["backbone_embedding_dim"],
        hidden=config["hidden_size"],
        num_heads=dit["num_attention_heads"],
        head_dim=dit["attention_head_dim"],
        depth=dit["num_layers"],
        output=dit["output_dim"],
        self_heads=vlm["num_attention_heads"],
        self_depth=vlm["num_layers"],
        state_dim=config["max_state_dim"],
        latent_dim=config["max_action_dim"],
        embodiments=config["max_num_embodiments"],
        positions=config["max_seq_len"],
    )


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


class Prefix(NamedTuple):
    """What every denoise step reads; lifetime OBSERVATION."""

    context: Context
    state: Tensor  # [B, 1, D]
    encoder: tuple[Layer, ...]  # three
    decoder: tuple[Layer, ...]  # two


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
        self.state_encoder = make_banks(count, layer1=(sizes.state_dim, hidden), layer2=(hidden, width))
        self.action_encoder = make_banks(count, W1=(sizes.latent_dim, width), W2=(2 * width, width), W3=(width, width))
        self.action_decoder = make_banks(count, layer1=(sizes.output, hidden), layer2=(hidden, sizes.latent_dim))
        self.position_embedding = nn.Embedding(sizes.positions, width)

    def attend_features(self, features: Tensor, mask: Tensor) -> Tensor:
        """The backbone's features [B, S, D], mask bool [B, S] -> what the blocks look at."""
        x = self.vlln(features)
        for block in self.vl_self_attention["transformer_blocks"]:
            x = block(x, mask)
        return x

    def prepare(self, seen: Tensor, mask: Tensor, is_image: Tensor, state: Tensor, embodiment: Tensor) -> Prefix:
        """What `attend_features` gave, masks bool [B, S], state [B, 1, S'], embodiment int64 [B] -> Prefix."""
        first, second = pick_layers(self.state_encoder, embodiment)
        return Prefix(
            context=self.model.look(seen, mask & ~is_image, mask & is_image),
            state=second.apply(relu(first.apply(state))),
            encoder=pick_layers(self.action_encoder, embodiment),
            decoder=pick_layers(self.action_decoder, embodiment),
        )

    def tabulate(self, count: int) -> TimeTables:
        """Everything that depends on the step, for N = `count` steps: row k belongs to step k, row N to the end."""
        return self.model.tabulate([int(k / count * BUCKETS) for k in range(count + 1)])

    def embed_actions(self, prefix: Prefix, latents: Tensor, features: Tensor) -> Tensor:
        """latents [B, H, A'], time features [B, D] -> action tokens [B, H, D]."""
        tokens = embed_actions(prefix.encoder, latents.to(self.position_embedding.weight.dtype), features)
        return tokens + self.position_embedding.weight[: latents.shape[1]]

    def embed(self, prefix: Prefix, latents: Tensor, tables: TimeTables, rows: Tensor) -> Tensor:
        """latents [B, H, A'] of step `rows` [B] -> tokens [B, 1 + H, D]."""
        return torch.cat((prefix.state, self.embed_actions(prefix, latents, tables.features[rows])), dim=1)

    def forward(self, prefix: Prefix, latents: Tensor, tables: TimeTables, rows: Tensor) -> Tensor:
        """Velocity [B, H, A']."""
        x = self.model(self.embed(prefix, latents, tables, rows), prefix.context, tables, rows)
        first, second = prefix.decoder
        return second.apply(relu(first.apply(x[:, -latents.shape[1] :])))
