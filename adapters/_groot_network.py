"""The network of GR00T N1.7: backbone and head, their sizes, and their weights from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phyai_adapters._camera_policy import place
from phyai_adapters._groot_head import ActionHead, HeadSizes, read_head_sizes
from phyai_adapters._qwen3_text import TextSizes, read_text_sizes
from phyai_adapters._qwen3_vision import VisionSizes, read_vision_sizes
from phyai_adapters._qwen3_vl import Qwen3Vl
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

UNUSED = ("backbone.language_model.norm.weight", "backbone.language_model.layers.*", "*lm_head.weight")
PATCHES = "backbone.visual.patch_embed.proj.weight"
VISION = VisionSizes(1024, 24, 4096, 16, 2304, 16, 2, 2048, (5, 11, 17))
TEXT = TextSizes(2048, 16, 6144, 16, 8, 128, 151936, 1e-6, 5e6, (24, 20, 20))


class GrootNetwork(nn.Module):
    """Backbone and head."""

    def __init__(self, vision: VisionSizes, text: TextSizes, head: HeadSizes):
        super().__init__()
        self.backbone, self.action_head = Qwen3Vl(vision, text), ActionHead(head)


def canonical_key(key: str) -> str:
    return key.replace("backbone.model.model.", "backbone.").replace("backbone.model.", "backbone.")


def load_network(
    folder: Path, config: Mapping[str, Any], device: torch.device, dtype: str | None, progress: Progress | None
) -> tuple[GrootNetwork, LoadReport]:
    """Of a checkpoint folder and its config.json. Raises ValueError naming the weights that do not fit."""
    vision = read_vision_sizes(config["qwen3_vl_vision"]) if "qwen3_vl_vision" in config else VISION
    depth = config["select_layer"]
    text = read_text_sizes(config["qwen3_vl_text"], depth) if "qwen3_vl_text" in config else replace(TEXT, depth=depth)
    network = place(GrootNetwork, device, vision, text, read_head_sizes(config))
    network.to(getattr(torch, dtype or ("bfloat16" if device.type == "cuda" else "float32")))
    targets = network.state_dict()
    targets[PATCHES] = targets[PATCHES].view(-1, 3, vision.frames, vision.patch, vision.patch)
    report = load_weights(Checkpoint(folder), targets, canonical=canonical_key, unused=UNUSED, progress=progress)
    return network, report
