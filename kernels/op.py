"""What an operation of this package is: a plain reference and, where it pays, a Triton kernel of the same signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton has no wheel for some platforms; the references still work there
    triton = tl = None

__all__ = ["Op", "jit", "tl", "triton"]


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit where Triton is installed, otherwise None in place of the kernel."""
    return None if triton is None else triton.jit(function)


@dataclass(frozen=True)
class Op:
    """One operation. `reference` runs on every device; `triton` gives the same result on CUDA devices."""

    name: str
    reference: Callable[..., torch.Tensor]
    triton: Callable[..., torch.Tensor] | None = None

    def available(self, device: torch.device) -> bool:
        """True when the Triton kernel can run on `device`."""
        return self.triton is not None and triton is not None and device.type == "cuda"

    def pick(self, device: torch.device) -> Callable[..., torch.Tensor]:
        """The implementation to use on `device`. Both compute on that device; nothing moves."""
        return self.triton if self.triton is not None and self.available(device) else self.reference
