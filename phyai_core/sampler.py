"""From noise to latents: N denoise steps, each the affine update that phyai_core.rtc describes.

Real-time chunking on or off, any d, s, mask and mode: the same code over tables of the same shape, only their contents
differ. x, Y and the tables stay float32. Every row has its own flow time, so that rows may be cleaner than others.
Letters in shapes: B batch, N denoise steps, H action horizon, A' model action dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.packing import Field
from phyai_core.rtc import RtcTables
from phyai_core.types import FloatArray, PolicySpec
from phyai_core.validity import Lifetime, Validity

PREFIX = "sampler."


class Conditioning(NamedTuple):
    """Where B chunks start from and what ties them to the last ones: arrays on the host, tensors on the device."""

    noise: Any  # [B, H, A'] standard normal
    leftover: Any  # [B, H, A'], Y
    starts: Any  # bool [B, H, 1]: this row starts from Y, not from noise
    abc: Any  # [N, B, H, 3]
    flow_times: Any  # [N, B, H]

    @classmethod
    def pick(cls, arrays: Mapping[str, Any]) -> Conditioning:
        """Those of the named arrays that `conditioning_fields` describes."""
        return cls(*(arrays[PREFIX + name] for name in cls._fields))


def conditioning_fields(spec: PolicySpec, batch: int) -> dict[str, Field]:
    """The arrays of a Conditioning of `batch` requests, under names that no adapter's input has."""
    steps, horizon, width = spec.num_denoise_steps, spec.action_horizon, spec.latent_dim
    float32 = np.dtype(np.float32)
    fields = Conditioning(
        noise=Field((batch, horizon, width), float32),
        leftover=Field((batch, horizon, width), float32),
        starts=Field((batch, horizon, 1), np.dtype(bool)),
        abc=Field((steps, batch, horizon, 3), float32),
        flow_times=Field((steps, batch, horizon), float32),
    )
    return {PREFIX + name: field for name, field in fields._asdict().items()}


def write_conditioning(arrays: Conditioning, row: int, tables: RtcTables, noise: FloatArray | Tensor) -> None:
    """Fill batch entry `row` of the host arrays with one request: its tables and its noise [H, A']."""
    steps, _, horizon, _ = arrays.abc.shape
    assert tables.abc.shape == (steps, horizon, 3), tables.abc.shape
    assert tables.prefix.shape == noise.shape == arrays.noise.shape[1:], (tables.prefix.shape, noise.shape)
    arrays.noise[row] = noise
    arrays.leftover[row] = tables.prefix
    arrays.starts[row] = np.arange(horizon)[:, None] < tables.start_rows
    arrays.abc[:, row] = tables.abc
    arrays.flow_times[:, row] = np.arange(steps)[:, None] / np.float32(steps)


def sample(
    adapter: Adapter,
    update: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    validity: Validity,
    prefix: Callable[[], Any],
    conditioning: Conditioning,
) -> Tensor:
    """Latents at flow time 1, [B, H, A'] float32. `prefix` gives what the adapter's encode_prefix returned."""
    noise, leftover, starts, abc, flow_times = conditioning
    x = torch.where(starts, leftover, adapter.init_latents(noise))
    assert x.shape == leftover.shape and x.dtype == torch.float32, (x.shape, x.dtype)
    for step in range(len(abc)):
        validity.begin(Lifetime.STEP)
        state, time = x, flow_times[step]
        velocity = validity.once("velocity", lambda: adapter.denoise_step(prefix(), state, time))  # noqa: B023
        x = update(x, velocity.read(), leftover, abc[step])
    return x
