"""One inference of GR00T N1.7, value by value, under the names of the recordings of Isaac-GR00T's head in lerobot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phyai_adapters._qwen3_vision import MERGE
from phyai_adapters._qwen3_vl import count_positions
from phyai_adapters._stage import Stage

if TYPE_CHECKING:
    from phyai_adapters.groot import Groot


def recorded_inputs(adapter: Groot, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Network inputs as recorded -> inputs of the adapter. All images have one size."""
    text, mask = recorded["input_ids"], recorded["attention_mask"].bool()
    _, rows, columns = recorded["image_grid_thw"][0].tolist()
    images = len(recorded["image_grid_thw"]) // len(text)
    return {
        "text": text,
        "text_mask": mask,
        "feature_mask": torch.ones_like(mask),  # recorded with padding that was not masked there
        "positions": count_positions(text, mask, adapter.marks[1], (rows // MERGE, columns // MERGE)),
        "patches": recorded["pixel_values"].reshape(len(text), images, rows * columns, -1),
        "grid": torch.zeros(len(text), rows, columns),
        "state": recorded["state"],
        "embodiment": recorded["embodiment_id"],
    }


@torch.no_grad()
def trace(adapter: Groot, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
    """Named values of one inference from `inputs` and noise [B, H, A']."""
    head, steps, tables = adapter.network.action_head, adapter.spec.num_denoise_steps, adapter.time_tables
    yield Stage("backbone.image_mask", inputs["text"] == adapter.marks[1])
    features = adapter.see(inputs)
    yield Stage("backbone.features(pre-final-norm, layer select_layer)", features)
    yield Stage("vl_features(after vlln + vl_self_attention)", head.attend_features(features, inputs["feature_mask"]))
    prefix, x = adapter.encode_prefix(inputs), noise
    yield Stage("state_features", prefix.state)
    first = torch.zeros(len(noise), dtype=torch.int64, device=noise.device)
    tokens = head.embed(prefix, adapter.unfold(x)[:, : adapter.rows], tables, first)
    yield Stage("step0.action_features", tokens[:, 1:])
    for index, hidden in enumerate(head.model.hidden(tokens, prefix.context, tables, first)):
        yield Stage(f"step0.dit.hidden.{index}", hidden)
    for step in range(steps):
        velocity = adapter.denoise_step(prefix, x, torch.full(x.shape[:2], step / steps, device=x.device))
        yield Stage(f"step{step}.velocity", velocity)
        x = x + velocity / steps
    yield Stage("action_pred", x)
