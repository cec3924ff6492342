"""What an operation of this package is: a plain reference, and faster candidates of the same signature.

Triton is optional, and so are its Hopper extensions; what is missing is None here and no candidate uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton has no wheel for some platforms; the references still work there
    triton = tl = gdc_launch_dependents = gdc_wait = None

__all__ = ["Candidate", "Op", "chained", "chains", "gdc_launch_dependents", "gdc_wait", "jit", "tl", "triton"]


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit where Triton is installed, otherwise None in place of the kernel."""
    return None if triton is None else triton.jit(function)


def chained(pdl: bool) -> dict[str, bool]:
    """Launch arguments of a kernel that may start before its predecessor ends (programmatic dependent launch).

    Such a kernel reads nothing that its predecessor wrote before gdc_wait. Needs compute capability 9.0.
    """
    return {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}


def chains(device: torch.device) -> bool:
    """Whether `device` can start a kernel before its predecessor ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@dataclass(frozen=True)
class Candidate:
    """One way to run an operation. `refuse(device, *args)` says why it cannot take this call, or None if it can."""

    name: str
    run: Callable[..., Any]
    refuse: Callable[..., str | None]


@dataclass(frozen=True)
class Op:
    """One operation. `reference` runs on every device; `triton` gives the same result on CUDA devices.

    Without measurements candidates are preferred in this order: `first`, the Triton kernel, `others`, the reference.
    `limits(*arguments)` says which calls the Triton kernel is not for, wherever they run, or None.
    Where candidates only prepare something, `launch` runs what they gave, and that is what is measured.
    """

    name: str
    reference: Callable[..., Any]
    triton: Callable[..., Any] | None = None
    first: tuple[Candidate, ...] = ()
    others: tuple[Candidate, ...] = ()
    launch: Callable[[Any], Any] | None = None
    limits: Callable[..., str | None] = lambda *_, **__: None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every candidate in the order of preference without measurements; the last one always can."""
        kernel = () if self.triton is None else (Candidate("triton", self.triton, self.refuse),)
        return (*self.first, *kernel, *self.others, Candidate("reference", self.reference, lambda *_, **__: None))

    def refuse(self, device: torch.device, *arguments: Any, **options: Any) -> str | None:
        """Why the Triton kernel cannot run on `device`, or not take these arguments where they are given, or None."""
        if self.triton is None:
            return "it has no Triton kernel"
        reason = _refuse_triton(device)
        return self.limits(*arguments, **options) if reason is None and arguments else reason

    def available(self, device: torch.device, *arguments: Any) -> bool:
        """True when the Triton kernel can run on `device`, with these arguments where they are given."""
        return self.refuse(device, *arguments) is None

    def pick(self, device: torch.device) -> Callable[..., Any]:
        """The implementation to use on `device`. Both compute on that device; nothing moves."""
        return self.triton if self.triton is not None and self.available(device) else self.reference

    def choose(self, device: torch.device, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """The first candidate that can take this call on `device`, without measurements."""
        able = (c for c in self.candidates if c.refuse(device, *arguments, **options) is None)
        return next(able).run


def _refuse_triton(device: torch.device) -> str | None:
    if triton is None:
        return "Triton is not installed"
    return None if device.type == "cuda" else f"needs a CUDA device, not {device.type}"
