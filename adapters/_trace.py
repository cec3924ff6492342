"""Named values inside one inference of pi0 or pi0.5, in the order they are computed, to find where a result departs.

Names and shapes are those of the parity fixtures, [B, heads, tokens, K] for keys and values. Values at padding tokens
mean nothing; `valid` says which count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from phyai_adapters._paligemma import Prefix
from phyai_adapters._pi import PiAdapter, PrefixTokens
from phyai_adapters._processing import pad_last
from phyai_adapters._stage import Stage, trace_steps

IMAGE = "observation.images."


def recorded_inputs(adapter: PiAdapter, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Policy inputs as recorded (float images [B, 3, h, w] in [0, 1], normalised state) -> inputs of the adapter.

    Cameras of the spec that were not recorded count as absent: a black frame, masked.
    """
    batch, size = len(recorded["observation.language.tokens"]), adapter.deployment.image_size
    keys = [camera.key for camera in adapter.spec.cameras]
    present = [IMAGE + key in recorded for key in keys]
    inputs = {f"image.{key}": torch.zeros(batch, size, size, 3) for key in keys}
    inputs |= {f"image.{key}": recorded[IMAGE + key].permute(0, 2, 3, 1) for key in keys if IMAGE + key in recorded}
    inputs["image_mask"] = torch.tensor(present).expand(batch, -1)
    inputs["tokens"] = recorded["observation.language.tokens"]
    inputs["token_mask"] = recorded["observation.language.attention_mask"].bool()
    if (state := recorded.get("observation.state")) is not None:
        inputs["state"] = torch.cat([pad_last(row.numpy(), adapter.spec.latent_dim) for row in state])
    return inputs


@torch.no_grad()
def trace(adapter: PiAdapter, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
    """Run one inference without RTC from `inputs` and noise [B, H, A'], yielding every named value."""
    images = adapter.prepare_images(inputs)
    for index in range(images.shape[1]):
        yield Stage(f"preproc.image.{index}", images[:, index])
        yield Stage(f"preproc.image_mask.{index}", inputs["image_mask"][:, index])
    tokens = adapter.assemble_prefix(inputs)
    yield Stage("prefix.embs", tokens.embeddings, tokens.mask[..., None])
    yield Stage("prefix.position_ids", tokens.positions, tokens.mask)
    prefix = adapter.encode_prefix(inputs)
    yield from _trace_keys_values(prefix, tokens)
    x = adapter.init_latents(noise)
    yield from _trace_tokens(adapter, prefix, x)
    yield from trace_steps(adapter, prefix, x, accumulate=adapter.deployment.layout == "openpi")


def _trace_keys_values(prefix: Prefix, tokens: PrefixTokens) -> Iterator[Stage]:
    """Prefix tokens only; pi0's state token is left out, as in the fixtures."""
    length, valid = tokens.mask.shape[1], tokens.mask[:, None, :, None]
    yield Stage("prefix.mask4d_allowed", tokens.mask[:, None, None, :].expand(-1, 1, length, length), valid)
    for index, layer in enumerate(prefix.keys_values):
        yield Stage(f"prefix.kv.{index}.k", layer.k[:, :length].transpose(1, 2), valid)
        yield Stage(f"prefix.kv.{index}.v", layer.v[:, :length].transpose(1, 2), valid)


def _trace_tokens(adapter: PiAdapter, prefix: Prefix, x: Tensor) -> Iterator[Stage]:
    """Expert tokens of the first step; a state token before the actions has no value here and does not count."""
    rows = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
    before = 1 if adapter.deployment.kind == "pi0" else 0
    valid = torch.arange(before + x.shape[1], device=x.device)[:, None] >= before  # [T, 1]
    for name, value in (
        ("embs", adapter.embed_actions(x, rows)),
        ("mask4d_allowed", prefix.key_mask[:, None, :].expand(-1, x.shape[1], -1)),
        ("last_hidden", adapter.hidden_state(prefix, x, rows)),
    ):
        value = pad(value, (0, 0, before, 0))
        yield Stage(f"suffix.step0.{name}", value[:, None] if name == "mask4d_allowed" else value, valid)
