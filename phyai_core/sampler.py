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
from phyai_core.guidance import Guidance, Point, VelocityField
from phyai_core.packing import Field
from phyai_core.rtc import RtcTables
from phyai_core.types import FloatArray, PolicySpec
from phyai_core.validity import Lifetime, Validity

PREFIX = "sampler."


class Conditioning(NamedTuple):
    """Where B chunks start from and what ties them to the last ones: arrays on the host, tensors on the device."""

    noise: Any  # [B, H, A'] standard normal; as many rows as a prediction draws on
    leftover: Any  # [B, H, A'], Y
    starts: Any  # bool [B, H, A']: starts from Y, not from noise; a prediction has to lead to Y there
    columns: Any  # bool [B, 1, A']: the dims that abc and Y apply to; the others take plain Euler steps
    abc: Any  # [N, B, H, 3]
    flow_times: Any  # [N, B, H]
    mask: Any  # [B, H, 1], W of the gradient modes
    gains: Any  # [N, B, 1, 1], their w_k / N; 0 in every other mode

    @classmethod
    def pick(cls, arrays: Mapping[str, Any]) -> Conditioning:
        """Those of the named arrays that `conditioning_fields` describes."""
        return cls(*(arrays[PREFIX + name] for name in cls._fields))

    def pull(self, clean: Tensor) -> Tensor:
        """How far the clean estimate [B, H, A'] is from the leftover, under the soft mask; 0 in unconditioned dims."""
        return self.mask * self.columns * (self.leftover - clean)


def conditioning_fields(spec: PolicySpec, batch: int) -> dict[str, Field]:
    """The arrays of a Conditioning of `batch` requests, under names that no adapter's input has."""
    steps, horizon, width = spec.num_denoise_steps, spec.action_horizon, spec.latent_dim
    float32 = np.dtype(np.float32)
    fields = Conditioning(
        noise=Field((batch, *spec.noise_shape), float32),
        leftover=Field((batch, horizon, width), float32),
        starts=Field((batch, horizon, width), np.dtype(bool)),
        columns=Field((batch, 1, width), np.dtype(bool)),
        abc=Field((steps, batch, horizon, 3), float32),
        flow_times=Field((steps, batch, horizon), float32),
        mask=Field((batch, horizon, 1), float32),
        gains=Field((steps, batch, 1, 1), float32),
    )
    return {PREFIX + name: field for name, field in fields._asdict().items()}


def write_conditioning(arrays: Conditioning, row: int, tables: RtcTables, noise: FloatArray | Tensor) -> None:
    """Fill batch entry `row` of the host arrays with one request: its tables and its noise."""
    steps, _, horizon, _ = arrays.abc.shape
    assert tables.abc.shape == (steps, horizon, 3), tables.abc.shape
    assert tables.prefix.shape == arrays.leftover.shape[1:], tables.prefix.shape
    assert noise.shape == arrays.noise.shape[1:], noise.shape
    arrays.noise[row] = noise
    arrays.leftover[row] = tables.prefix
    arrays.starts[row] = (np.arange(horizon)[:, None] < tables.start_rows) & tables.columns
    arrays.columns[row] = tables.columns
    arrays.abc[:, row] = tables.abc
    arrays.flow_times[:, row] = tables.flow_times
    arrays.mask[row, :, 0] = tables.mask
    arrays.gains[:, row, 0, 0] = tables.gains


def sample(
    adapter: Adapter,
    update: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    validity: Validity,
    prefix: Callable[[], Any],
    given: Conditioning,
    guidance: Guidance | None = None,
) -> Tensor:
    """Latents at flow time 1, [B, H, A'] float32. `prefix` gives what the adapter's encode_prefix returned.

    Without denoise steps it is the adapter's prediction.
    """
    if not len(given.abc):
        return _predict(adapter, prefix(), given)
    x = torch.where(given.starts, given.leftover, adapter.init_latents(given.noise))
    assert x.shape == given.leftover.shape and x.dtype == torch.float32, (x.shape, x.dtype)
    guide = guidance or _follow
    for step in range(len(given.abc)):
        validity.begin(Lifetime.STEP)
        point = Point(prefix(), x, given.flow_times[step])
        velocity, gradient = validity.once("velocity", lambda: guide(adapter.denoise_step, point, given.pull)).read()  # noqa: B023
        conditioned = update(x, velocity, given.leftover, given.abc[step])
        x = torch.where(given.columns, conditioned, torch.add(x, velocity, alpha=1.0 / len(given.abc)))
        if gradient is not None:
            x = x + given.gains[step] * gradient
    return x


def _predict(adapter: Adapter, prefix: Any, given: Conditioning) -> Tensor:
    if "hard" in adapter.spec.rtc_modes:
        return adapter.predict_onto(prefix, given.noise, given.leftover, given.starts)
    return adapter.predict(prefix, given.noise)


def _follow(field: VelocityField, point: Point, pull: Callable[[Tensor], Tensor]) -> tuple[Tensor, None]:
    """Every mode that is an affine update: the velocity and nothing else."""
    return field(*point), None
