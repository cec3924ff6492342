"""Named values inside one inference of SmolVLA, under the names and shapes of the parity fixtures.

Where the recording has slots of absent cameras, which are masked and computed by nobody here, a gap stands for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phyai_adapters._lerobot import IMAGES
from phyai_adapters._stage import Stage, trace_steps

if TYPE_CHECKING:
    from phyai_adapters.smolvla import PrefixTokens, SmolVla


def recorded_inputs(adapter: SmolVla, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float images [B, 3, h, w] in [0, 1], tokens and the normalised state -> inputs of the adapter."""
    keys = [camera.key for camera in adapter.spec.cameras]
    tokens, state = recorded["observation.language.tokens"], recorded["observation.state"]
    return {
        **{f"image.{key}": recorded[IMAGES + key].permute(0, 2, 3, 1).contiguous() for key in keys},
        "image_mask": torch.ones(len(tokens), len(keys), dtype=torch.bool),
        "tokens": tokens,
        "token_mask": recorded["observation.language.attention_mask"].bool(),
        "state": torch.nn.functional.pad(state, (0, adapter.spec.latent_dim - state.shape[-1])),
    }


@torch.no_grad()
def trace(adapter: SmolVla, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
    """Run one inference without RTC, yielding every named value."""
    for index, image in enumerate(adapter.prepare_images(inputs).unbind(1)):
        yield Stage(f"preproc.image.{index}", image)
        yield Stage(f"preproc.image_mask.{index}", inputs["image_mask"][:, index])
    tokens, gap = adapter.assemble_prefix(inputs), _Gap(adapter)
    mask = torch.cat((tokens.mask, tokens.mask.new_ones(len(tokens.mask), 1)), dim=1)
    valid = gap.open(mask, 1)
    yield Stage("prefix.embs", gap.open(torch.cat((tokens.embeddings, tokens.state), 1), 1), valid[..., None])
    yield Stage("prefix.position_ids", gap.open(tokens.positions, 1), valid)
    prefix = adapter.encode_prefix(inputs)
    yield from _trace_keys_values(adapter, inputs, tokens, gap, valid)
    yield Stage("suffix.step0.mask2d_allowed", gap.open(prefix.mask, 2))
    x = adapter.init_latents(noise)
    rows = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
    yield Stage("suffix.step0.embs", adapter.embed_actions(x, rows))
    yield Stage("suffix.step0.last_hidden", adapter.network.expert(adapter.embed_actions(x, rows), prefix))
    yield from trace_steps(adapter, prefix, x, accumulate=False)


def _trace_keys_values(adapter: SmolVla, inputs, tokens: PrefixTokens, gap: _Gap, valid: Tensor) -> Iterator[Stage]:
    layers = adapter.network.vlm(tokens.embeddings, tokens.state, adapter.rotary(tokens.positions), tokens.mask)
    for index, layer in enumerate(layers):
        for name, value in zip("kv", layer, strict=True):
            yield Stage(f"prefix.kv.{index}.{name}", gap.open(value, 1).transpose(1, 2), valid[:, None, :, None])


class _Gap:
    """Zeros behind the present cameras, as long as the absent ones of the recording."""

    def __init__(self, adapter: SmolVla):
        per_image = adapter.network.sizes.image_tokens
        self.start = len(adapter.spec.cameras) * per_image
        self.length = 0 if adapter.image_tokens else adapter.config["empty_cameras"] * per_image

    def open(self, value: Tensor, axis: int) -> Tensor:
        before, behind = value.split((self.start, value.shape[axis] - self.start), axis)
        shape = list(value.shape)
        shape[axis] = self.length
        return torch.cat((before, value.new_zeros(shape), behind), axis)
