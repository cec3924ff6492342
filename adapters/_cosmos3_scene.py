"""Sizes of the transformer of Cosmos3, and what one of its samples is made of.

Text counts positions on; frames and rows are placed in time by their rate, far behind the text. B batch, T tokens of
video and actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phyai_adapters._qwen3_text import TextSizes


@dataclass(frozen=True)
class CosmosSizes(TextSizes):
    """Sizes of the transformer: a language model's, and those of video and actions."""

    channels: int  # of the video latents
    patch: int
    action_dim: int
    domains: int
    time_scale: float
    base_fps: float
    margin: int  # between the last text position and the first frame


def read_sizes(config: Mapping[str, Any]) -> CosmosSizes:
    """Of a transformer's config.json."""
    return CosmosSizes(
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        mlp_width=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        eps=config["rms_norm_eps"],
        theta=config["rope_theta"],
        sections=tuple(config["rope_axes_dim"]),
        channels=config["latent_channel"],
        patch=config["latent_patch_size"],
        action_dim=config["action_dim"],
        domains=config["num_embodiment_domains"],
        time_scale=config["timestep_scale"],
        base_fps=config["base_fps"],
        margin=config["unified_3d_mrope_temporal_modality_margin"],
    )


@dataclass(frozen=True)
class Scene:
    """What stays the same over all steps of one sample: sizes, rates, and which part is given."""

    grid: tuple[int, int, int]  # latent frames, and patches down and across
    rows: int  # of actions
    domain: int
    fps: float
    first_row: int  # control steps from the first frame to the first row
    clean_frames: int
    clean_rows: int


def place_tokens(sizes: CosmosSizes, scene: Scene, text_tokens: Tensor) -> Tensor:
    """[B, 3, T] float32 of video and action tokens behind texts of so many tokens, [B]."""
    (frames, down, across), device = scene.grid, text_tokens.device
    rate = sizes.base_fps / scene.fps
    start = (text_tokens + sizes.margin).float()[:, None]
    cell = torch.arange(frames * down * across, device=device)
    row = torch.arange(scene.rows, device=device) + scene.first_row
    time = torch.cat((start + cell // (down * across) * rate, start + row * (rate / 4)), dim=1)
    still = row.new_zeros(scene.rows)
    places = (torch.cat((part, still)).float().expand_as(time) for part in (cell // across % down, cell % across))
    return torch.stack((time, *places), dim=1)
