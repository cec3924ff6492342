"""One inference of MiniCPM-Robot, value by value: the backbone under the names of its recording, then the chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phyai_adapters._minicpm_v import count_text
from phyai_adapters._stage import Stage

if TYPE_CHECKING:
    from phyai_adapters.minicpm import MiniCpm


def recorded_inputs(adapter: MiniCpm, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tokens and patches as recorded -> inputs of the adapter; nothing was recorded of state and embodiment.

    `pixel_values` [1, 3, p, .] is one strip of patches p x p, image by image and row by row; images are [-1, 1].
    """
    text, cameras = recorded["input_ids"], adapter.spec.cameras
    patch, grid = adapter.vision.sizes.patch, adapter.grid
    if recorded["target_sizes"].tolist() != [list(grid)] * len(cameras):
        sizes = recorded["target_sizes"].tolist()
        raise ValueError(f"--io: images of {sizes} patches recorded, the policy takes {len(cameras)} of {list(grid)}")
    strip = recorded["pixel_values"][0].unflatten(2, (len(cameras), *grid, patch))  # 3, p, C, r, c, p
    frames = strip.permute(2, 3, 1, 4, 5, 0).flatten(3, 4).flatten(1, 2)  # C, r p, c p, 3
    return {
        **{f"image.{camera.key}": frame[None] / 2 + 0.5 for camera, frame in zip(cameras, frames, strict=True)},
        "text": text,
        "text_mask": torch.ones_like(text, dtype=torch.bool),
        "state": torch.zeros(len(text), adapter.head.state_dim),
        "embodiment": torch.full((len(text),), adapter.embodiment),
    }


@torch.no_grad()
def trace(adapter: MiniCpm, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
    """Named values of one inference from `inputs` and noise [B, H, A']."""
    seen: dict[str, Tensor] = {}
    watched = {"vision.last_hidden": adapter.vision, "image_features": adapter.network.backbone.merger["mlp"][0]}
    hooks = [
        module.register_forward_hook(lambda _module, _given, value, name=name: seen.update({name: value}))
        for name, module in watched.items()
    ]
    x = adapter.see(inputs)
    for hook in hooks:
        hook.remove()
    yield Stage("vision.last_hidden", seen["vision.last_hidden"].flatten(0, 1)[None])
    yield Stage("image_features", seen["image_features"].flatten(0, 1))
    text = adapter.network.backbone.language_model
    for index, (hidden, _) in enumerate(text.states(x, count_text(0, x.shape[1], len(x), x.device))):
        yield Stage(f"layer.{index}.out", hidden)
    yield Stage("last_hidden_state", text.norm(hidden)[0])
    prefix, steps = adapter.encode_prefix(inputs), adapter.spec.num_denoise_steps
    for step in range(steps):
        noise = (
            noise
            + adapter.denoise_step(prefix, noise, torch.full(noise.shape[:2], step / steps, device=noise.device))
            / steps
        )
    yield Stage("action_chunk", noise if steps else adapter.predict(prefix, noise))
