"""Times of the kernels that a policy can choose from, at the shapes that it really has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from phyai_core.adapter import Adapter
from phyai_core.engine import Engine
from phyai_kernels.dispatch import Choice
from phyai_kernels.measuring import MeasuringDispatcher, Told
from phyai_kernels.profile import Profile, default_folder, load_profile

__all__ = ["Choice", "KernelTimes", "Profile", "default_folder", "load_profile", "measure_kernels"]


class KernelTimes(NamedTuple):
    """What was measured, what the runtime will choose from it, and in words what is not chosen here."""

    profile: Profile
    choices: list[Choice]
    left_out: str


def measure_kernels(
    adapter: Adapter, device: torch.device, batch_sizes: Sequence[int], known: Profile | None, tell: Told
) -> KernelTimes:
    """Run every prompt length and batch once, then measure all candidates that `known` lacks, telling of each.

    The adapter is of no further use.
    """
    dispatcher = adapter.dispatcher = MeasuringDispatcher(device, known)
    engine = Engine(adapter, device, batch_sizes, use_graphs=False)
    engine.runner.run_examples()
    with torch.inference_mode():  # buffers were made in it
        dispatcher.measure(tell)
    engine.close()
    left_out = dispatcher.summary() if dispatcher.choices and not dispatcher.asked else ""
    return KernelTimes(dispatcher.profile, dispatcher.choose().choices, left_out)
