"""A named value inside one inference, and what an adapter offers to have them compared with a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from phyai_adapters._flow_time import model_times
from phyai_core.adapter import Adapter


class Stage(NamedTuple):
    """One value. `valid` is bool and broadcasts to it; None: all of it counts."""

    name: str
    value: Tensor
    valid: Tensor | None = None


@runtime_checkable
class Traceable(Protocol):
    """An adapter whose inference can be followed."""

    def recorded_inputs(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Policy inputs as another code base hands them to its network -> inputs of this adapter.

        `noise` among them where it was recorded in another shape than spec.noise_shape.
        """

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Run one inference from `inputs` and noise [B, H, A'], yielding named values; the last is the chunk."""


def trace_steps(adapter: Adapter, prefix: Any, x: Tensor, accumulate: bool) -> Iterator[Stage]:
    """Every denoise step from x on; `accumulate` as in model_times."""
    steps = adapter.spec.num_denoise_steps
    times = model_times(steps, accumulate)
    for step in range(steps):
        yield Stage(f"step.{step}.time", times[step].expand(len(x)))
        yield Stage(f"step.{step}.x_t", x)
        velocity = adapter.denoise_step(prefix, x, torch.full(x.shape[:2], step / steps, device=x.device))
        yield Stage(f"step.{step}.v_t", -velocity)  # the fixtures point from action to noise
        x = x + velocity / steps
    yield Stage("actions_padded", x)
