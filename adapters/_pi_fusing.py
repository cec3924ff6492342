"""The side of the pi0 and pi0.5 adapters that brings fused launches: what a kind of model has to say for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from phyai_adapters._pi_fused import FusedInference
from phyai_adapters._pi_packed import FusedWeights, pack_weights, refuse_fused
from phyai_core.adapter import Adapter
from phyai_kernels.dispatch import Dispatcher

if TYPE_CHECKING:
    from phyai_core.sampler import Conditioning
    from phyai_kernels.expert_loop import LoopInputs
    from phyai_kernels.expert_weights import ExpertEnds


class FusingAdapter(Adapter):
    """Same values as the methods give, up to rounding."""

    device: torch.device
    lead_rows: ClassVar[int] = 0  # tokens of the expert before the chunk, which see only the prefix and themselves
    fuses_everywhere = False  # for tests: `fuse` in float32 too, and by the references where there are no kernels
    _fused: FusedWeights | None = None

    def pack(self) -> None:
        """When the adapter is made, not when an engine asks: packing moves weights that graphs may hold."""
        if not refuse_fused(self):
            self._fused = pack_weights(self)

    def fuse(self, inputs: Mapping[str, Tensor], given: Conditioning) -> Mapping[str, Callable[[], Tensor | None]]:
        """As in the base: on GPUs with Triton, in bfloat16; for other cases {}, and the dispatcher holds the reason."""
        if self.dispatcher is None:
            self.dispatcher = Dispatcher(self.device)
        if reason := refuse_fused(self):
            self.dispatcher.note("fused inference", self.spec.name, "methods", {"fused": f"refused: {reason}"})
            return {}
        if self._fused is None:
            self._fused = pack_weights(self)
        return FusedInference(self, self._fused, inputs, given, self.dispatcher).launches()

    @abstractmethod
    def expert_ends(self) -> ExpertEnds:
        """Projections in and out of the expert."""

    @abstractmethod
    def modulation_table(self) -> Tensor:
        """[T, 2 L + 1, 3 D] scale, shift and gate of every norm at every flow time."""

    def begin_loop(self, inputs: LoopInputs) -> None:
        """Set what stays the same in every inference."""

    def lead_tokens(self, inputs: Mapping[str, Tensor], robots: slice, out: Tensor) -> None:
        """Fill out [B, lead rows, D] for these robots."""
