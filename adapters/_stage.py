"""A named value inside one inference, and what an adapter offers to have them compared with a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


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
