"""A head for the features of MiniCPM-V 4.6, of the layout that MiniCPM-Robot is thought to have. No public reference.

    tokens  [32 learned ones | 30 actions];  action token = W3 silu(W2 [W1 [state | action]; features(t)]) + position
    sample  a = 0;  for t = 1, 3/4, 1/2, 1/4:  a = net(t noise + (1 - t) a, t)

Encoder of actions and decoder exist once per embodiment. The released head was never seen: the layout is that of a
relative, and with 32 embodiments it has as many parameters as published, 235.8 million. Names of weights are ours.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from phyai_adapters._alternating_dit import (
    Context,
    DitSizes,
    Layer,
    TimeTables,
    Transformer,
    embed_actions,
    make_banks,
    pick_layers,
)
from phyai_adapters._camera_policy import place
from phyai_adapters._deployment import read_json
from phyai_adapters.action_heads import ActionHead
from phyai_core.weights import Checkpoint, load_weights

CONFIG, WEIGHTS, PREFIX = "action_head.json", "action_head.safetensors", "action_head."
BACKBONE = "backbone:"  # put before keys that are not the head's
LAST_TIME = 999


@dataclass(frozen=True)
class HeadSizes(DitSizes):
    """Sizes of the head; a checkpoint's action_head.json has those that differ from FULL."""

    hidden: int  # of the decoder
    state_dim: int
    latent_dim: int
    action_horizon: int
    future: int  # learned tokens before the actions
    embodiments: int
    positions: int
    steps: int  # calls of the network per chunk


FULL = HeadSizes(1024, 12, 64, 16, 1024, 1024, 80, 80, 30, 32, 32, 1024, 4)


class Prepared(NamedTuple):
    """What every call of the network reads; lifetime OBSERVATION."""

    context: Context
    state: Tensor  # [B, 1, S']
    encoder: tuple[Layer, ...]  # three
    decoder: tuple[Layer, ...]  # two


class ReferenceHead(ActionHead):
    """Predicts the clean chunk from a noisy one, a few times over; frozen rows are put back after every time."""

    freezes = True

    def __init__(self, sizes: HeadSizes):
        super().__init__()
        self.sizes = sizes
        self.action_horizon, self.latent_dim, self.state_dim = sizes.action_horizon, sizes.latent_dim, sizes.state_dim
        self.embodiments = sizes.embodiments
        count, width, given = sizes.embodiments, sizes.width, sizes.state_dim + sizes.latent_dim
        self.model = Transformer(sizes)
        self.future_tokens, self.position_embedding = (nn.Embedding(n, width) for n in (sizes.future, sizes.positions))
        self.action_encoder = make_banks(count, W1=(given, width), W2=(2 * width, width), W3=(width, width))
        self.action_decoder = make_banks(
            count, layer1=(sizes.output, sizes.hidden), layer2=(sizes.hidden, sizes.latent_dim)
        )
        self.tables: TimeTables | None = None

    @classmethod
    def load(cls, folder: Path, width: int, device: torch.device, dtype: torch.dtype | None) -> ReferenceHead:
        """Weights from action_head.safetensors, or those named action_head.* beside the backbone's; float32."""
        head = place(cls, device, read_sizes(folder, width)).to(dtype or torch.float32)
        alone = (folder / WEIGHTS).is_file()
        weights = Checkpoint(folder / WEIGHTS if alone else folder)
        if not alone and not any(PREFIX in key for key in weights.shapes):
            raise ValueError(
                f"checkpoint: {folder} has no weights of an action head. MiniCPM-V 4.6 alone is no policy: put "
                f"{WEIGHTS} there, or name your own class as action_head in phyai.json"
            )
        canonical = (lambda key: key.removeprefix(PREFIX)) if alone else _canonical_key
        load_weights(weights, head.state_dict(), canonical=canonical, unused=(BACKBONE + "*",))
        return head

    @torch.no_grad()
    def tabulate(self) -> None:
        """Keep what depends on the time alone."""
        self.tables = self.model.tabulate([min(int(1000 * time), LAST_TIME) for time in self.times])

    @property
    def times(self) -> list[float]:
        """How much of the chunk is noise in each call, from 1 down."""
        return [(self.sizes.steps - step) / self.sizes.steps for step in range(self.sizes.steps)]

    def prepare(self, features: Tensor, mask: Tensor, state: Tensor, embodiment: Tensor) -> Prepared:
        """See ActionHead."""
        dtype = self.position_embedding.weight.dtype
        return Prepared(
            context=self.model.look(features.to(dtype), mask),
            state=state.to(dtype)[:, None],
            encoder=pick_layers(self.action_encoder, embodiment),
            decoder=pick_layers(self.action_decoder, embodiment),
        )

    def forward(self, prepared: Prepared, noisy: Tensor, step: int) -> Tensor:
        """The clean chunk [B, H, A'] that is seen in the noisy one, [B, H, A']."""
        rows = torch.full((len(noisy),), step, device=noisy.device)
        given = torch.cat((prepared.state.expand(-1, noisy.shape[1], -1), noisy.to(prepared.state.dtype)), dim=-1)
        tokens = embed_actions(prepared.encoder, given, self.tables.features[rows])
        tokens = tokens + self.position_embedding.weight[: noisy.shape[1]]
        future = self.future_tokens.weight.expand(len(tokens), -1, -1)
        x = self.model(torch.cat((future, tokens), dim=1), prepared.context, self.tables, rows)
        first, second = prepared.decoder
        return second.apply(relu(first.apply(x[:, -noisy.shape[1] :])))

    def sample(
        self, prepared: Prepared, noise: Tensor, given: Tensor | None = None, frozen: Tensor | None = None
    ) -> Tensor:
        """See ActionHead."""
        chunk = torch.zeros_like(noise)
        for step, time in enumerate(self.times):
            chunk = self(prepared, time * noise + (1 - time) * chunk, step).float()
            if given is not None:
                chunk = torch.where(frozen, given, chunk)
        return chunk


def read_sizes(folder: Path, width: int) -> HeadSizes:
    """FULL with the entries of action_head.json. Raises ValueError naming entries that are unknown."""
    file = folder / CONFIG
    entries = read_json(file) if file.is_file() else {}
    if unknown := sorted(set(entries) - set(asdict(FULL))):
        raise ValueError(f"{file}: {', '.join(unknown)} unknown; allowed: {', '.join(asdict(FULL))}")
    sizes = replace(FULL, **{"features": width, **entries})
    if sizes.features != width:
        raise ValueError(f"{file}: features is {sizes.features}, the backbone gives {width}")
    return sizes


def _canonical_key(key: str) -> str:
    """Of a file that holds the backbone too."""
    _, found, name = key.rpartition(PREFIX)
    return name if found else BACKBONE + key
