"""The backbone of MiniCPM-Robot, MiniCPM-V 4.6: loading, and features of images and text.

The action head of MiniCPM-Robot is published with its checkpoint only, without a public reference to compare with, so
there is no adapter of the whole policy here: this is the part that could be verified. A head takes its `features`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from phyai_adapters._camera_policy import place
from phyai_adapters._deployment import read_json
from phyai_adapters._minicpm_v import MiniCpmV, TowerSizes, count_text, read_tower_sizes
from phyai_adapters._qwen3_5 import HybridSizes, read_hybrid_sizes
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

MODEL_TYPE = "minicpmv4_6"
UNUSED = ("lm_head.weight", "mtp.*")
KINDS = ("linear_attention",) * 3 + ("full_attention",)
TOWER = TowerSizes(1152, 27, 4304, 16, 14, 70 * 70, 1e-6, 6, 1024)
TEXT = HybridSizes(1024, 3584, 248320, KINDS * 6, 8, 2, 256, 64, 1e7, (11, 11, 10), 16, 16, 128, 128, 4)


def canonical_key(key: str) -> str:
    return key.removeprefix("model.")


class MiniCpmBackbone:
    """Images and tokens -> features, without any memory between calls."""

    def __init__(self, network: MiniCpmV, image_token: int, report: LoadReport | None = None):
        self.network, self.image_token, self.report = network, image_token, report

    @classmethod
    def load(cls, folder: Path, device: torch.device, progress: Progress | None = None) -> MiniCpmBackbone:
        """Read a folder with config.json and weights. Raises ValueError naming the file and entry at fault."""
        file = folder / "config.json"
        config = read_json(file)
        if config.get("model_type") != MODEL_TYPE:
            raise ValueError(f"{file}: model_type is {config.get('model_type')!r}; supported: {MODEL_TYPE!r}")
        if (mode := config.get("downsample_mode", "16x")) != "16x":
            raise ValueError(f"{file}: downsample_mode is {mode!r}; supported: '16x'")
        text = config["text_config"]
        tower = read_tower_sizes(config["vision_config"], config["insert_layer_id"], text["hidden_size"])
        network = place(MiniCpmV, device, tower, read_hybrid_sizes(text, text["layer_types"]))
        targets, key = network.state_dict(), "vision_tower.embeddings.patch_embedding.weight"
        targets[key] = targets[key].view(-1, 3, tower.patch, tower.patch)
        report = load_weights(Checkpoint(folder), targets, canonical=canonical_key, unused=UNUSED, progress=progress)
        return cls(network, config["image_token_id"], report)

    @torch.no_grad()
    def features(self, inputs: Mapping[str, Tensor], grid: tuple[int, int]) -> Tensor:
        """`tokens` [B, T] and `patches` [B, C, P, .] of C images of `grid` rows and columns -> [B, T, D]."""
        tokens, patches = inputs["tokens"], inputs["patches"]
        images = self.network.see(patches.flatten(0, 1), grid).unflatten(0, patches.shape[:2]).flatten(1, 2)
        x = self.network.embed(tokens, tokens == self.image_token, images)
        return self.network.language_model(x, count_text(0, tokens.shape[1], len(tokens), tokens.device))[0]
