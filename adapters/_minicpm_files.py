"""What lies in a folder of MiniCPM-Robot: config.json and weights of MiniCPM-V 4.6, an action head, and phyai.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from phyai_adapters._camera_policy import place
from phyai_adapters._deployment import Deployment, Options, read_json
from phyai_adapters._minicpm_v import MiniCpmV, TowerSizes, read_tower_sizes
from phyai_adapters._processing import Normaliser
from phyai_adapters._qwen3_5 import HybridSizes, read_hybrid_sizes
from phyai_adapters.action_heads import ActionHead
from phyai_core.types import PolicySpec
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

MODEL_TYPE = "minicpmv4_6"
UNUSED = ("lm_head.weight", "mtp.*", "*action_head.*")
PATCHES = "vision_tower.embeddings.patch_embedding.weight"
FLOAT32 = ("A_log", "dt_bias")  # small, and in an exponent
IMAGE_SIZE, PROMPT_TOKENS = 448, 64
KINDS = ("linear_attention",) * 3 + ("full_attention",)
TOWER = TowerSizes(1152, 27, 4304, 16, 14, 70 * 70, 1e-6, 6, 1024)
TEXT = HybridSizes(1024, 3584, 248320, KINDS * 6, 8, 2, 256, 64, 1e7, (11, 11, 10), 16, 16, 128, 128, 4)


class MiniCpmNetwork(nn.Module):
    """Backbone and head."""

    def __init__(self, backbone: MiniCpmV, action_head: ActionHead):
        super().__init__()
        self.backbone, self.action_head = backbone, action_head


def canonical_key(key: str) -> str:
    return key.removeprefix("model.")


def read_config(folder: Path) -> Mapping[str, Any]:
    """config.json. Raises ValueError for another model, or a variant of it that is not built."""
    file = folder / "config.json"
    config = read_json(file)
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(f"{file}: model_type is {config.get('model_type')!r}; supported: {MODEL_TYPE!r}")
    if (mode := config.get("downsample_mode", "16x")) != "16x":
        raise ValueError(f"{file}: downsample_mode is {mode!r}; supported: '16x'")
    return config


def make_backbone(tower: TowerSizes, text: HybridSizes, device: torch.device, dtype: torch.dtype) -> MiniCpmV:
    """Without weights yet."""
    backbone = place(lambda *sizes: MiniCpmV(*sizes).to(dtype), device, tower, text)
    for name, parameter in backbone.named_parameters():
        if name.endswith(FLOAT32):
            parameter.data = parameter.data.float()
    return backbone


def load_backbone(
    folder: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype, progress: Progress | None
) -> tuple[MiniCpmV, LoadReport]:
    """Raises ValueError naming the weights that do not fit."""
    text = config["text_config"]
    tower = read_tower_sizes(config["vision_config"], config["insert_layer_id"], text["hidden_size"])
    backbone = make_backbone(tower, read_hybrid_sizes(text, text["layer_types"]), device, dtype)
    targets = backbone.state_dict()
    targets[PATCHES] = targets[PATCHES].view(-1, 3, tower.patch, tower.patch)
    weights = Checkpoint(folder)
    return backbone, load_weights(weights, targets, canonical=canonical_key, unused=UNUSED, progress=progress)


def make_deployment(options: Options, head: ActionHead, image_size: int, layout: str) -> Deployment:
    """From the options, because a checkpoint says nothing of cameras and joints. Raises ValueError naming an option.

    Numbers of state and actions pass unchanged: how they are normalised was not published.
    """
    for name, example in (("cameras", '["front"]'), ("state_names", '["joint_1"]'), ("action_names", '["joint_1"]')):
        if not getattr(options, name):
            raise ValueError(
                f"{name}: the checkpoint does not say them; write them in the order of training as "
                f'{{"{name}": {example}}} into phyai.json'
            )
    for name, width in (("state_names", head.state_dim), ("action_names", head.latent_dim)):
        if len(getattr(options, name)) > width:
            raise ValueError(f"{name}: {len(getattr(options, name))} names given; the head takes at most {width}")
    return Deployment(
        kind="minicpm",
        layout=layout,
        action_horizon=head.action_horizon,
        num_denoise_steps=head.num_denoise_steps,
        prompt_tokens=PROMPT_TOKENS,
        image_size=image_size,
        cameras=dict.fromkeys(options.cameras, (image_size, image_size)),
        state=Normaliser(),
        action=Normaliser(),
        state_names=tuple(options.state_names),
        action_names=tuple(options.action_names),
        relative=np.zeros(len(options.action_names), bool),
    ).choose(replace(options, cameras=None))


def make_spec(
    deployment: Deployment, head: ActionHead, rate_hz: float | None, folder: Path | None = None
) -> PolicySpec:
    """Raises ValueError where the rate is not known."""
    spec = deployment.spec(head.latent_dim, rate_hz, folder)
    frozen = head.freezes and not head.num_denoise_steps
    return replace(spec, rtc_modes=("none", "hard")) if frozen else spec


def choose_embodiment(options: Options, head: ActionHead) -> int:
    """Raises ValueError where the head knows several robots and none of them is named."""
    if options.embodiment is None and head.embodiments == 1:
        return 0
    given = str(options.embodiment)
    if not given.isdigit() or int(given) >= head.embodiments:
        raise ValueError(
            f"embodiment: {options.embodiment!r} is none of those the head knows; write the number of yours, 0 to "
            f'{head.embodiments - 1}, as {{"embodiment": "0"}} into phyai.json'
        )
    return int(given)
