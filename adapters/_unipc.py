"""UniPC of order 2 for flow matching: each step predicts the next sample and corrects the one it came from.

x(sigma) = (1 - sigma) clean + sigma noise, and the network gives the velocity noise - clean, so clean = x - sigma v.
With l = log(1 - sigma) - log(sigma) and h = l_next - l, both corrections are sums of differences of clean estimates.
Source: arXiv 2302.04867 (variant B2, data prediction).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

TRAINED_STEPS = 1000


def flow_sigmas(steps: int, shift: float) -> Tensor:
    """[N + 1] float32: evenly from 0.999 to 0 without the end, shifted by s sigma / (1 + (s - 1) sigma), then 0."""
    even = torch.linspace(1 - 1 / TRAINED_STEPS, 0.0, steps + 1, dtype=torch.float64)[:-1]
    return torch.cat((shift * even / (1 + (shift - 1) * even), torch.zeros(1))).float()


def karras_sigmas(steps: int, low: float = 0.147, high: float = 200.0, rho: float = 7.0) -> Tensor:
    """[N + 1] float32: the schedule of Karras et al. in s, as s / (1 + s), then 0."""
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    s = (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    return torch.cat((s / (1 + s), torch.zeros(1))).float()


def exported_sigmas(config: Mapping[str, Any], steps: int) -> Tensor:
    """[N + 1] float32 as diffusers' scheduler of this config has them. Raises ValueError for schedules of other kinds.

    Its flow schedule runs evenly from 1 to the last step of training, before the shift; sigma itself stays below 1.
    """
    if config.get("use_karras_sigmas"):
        return karras_sigmas(steps, config.get("sigma_min") or 0.147, config.get("sigma_max") or 200.0)
    if not config.get("use_flow_sigmas"):
        raise ValueError("use_karras_sigmas and use_flow_sigmas are both false; supported: one of them")
    shift, even = config.get("flow_shift", 1.0), torch.linspace(1.0, 1 / TRAINED_STEPS, steps + 1, dtype=torch.float64)
    sigmas = torch.cat((shift * even / (1 + (shift - 1) * even), torch.zeros(1)))[[*range(steps), -1]]
    return sigmas.clamp(max=1 - 1e-6).float()


def discrete_times(sigmas: Tensor) -> list[int]:
    """What the network is told of each of the N steps."""
    return (sigmas[:-1] * TRAINED_STEPS).long().tolist()


class UniPc:
    """One sample. `step(index, x, velocity)` gives the next x; x may be several tensors in one sequence."""

    def __init__(self, sigmas: Tensor):
        self._sigmas = sigmas.double().tolist()
        self._clean: list[Sequence[Tensor]] = []  # estimates of the last two steps
        self._before: Sequence[Tensor] = ()
        self._order = 0

    def step(self, index: int, x: Sequence[Tensor], velocity: Sequence[Tensor]) -> list[Tensor]:
        """From sigma[index] to sigma[index + 1]."""
        sigma, last = self._sigmas[index], len(self._sigmas) - 2
        clean = [part - sigma * v for part, v in zip(x, velocity, strict=True)]
        if index > 0:
            x = self._correct(index, clean)
        self._clean = [*self._clean[-1:], clean]
        self._before, self._order = x, min(2, len(self._clean), last - index + 1)
        return self._predict(index)

    def _log_ratio(self, index: int) -> float:
        sigma = self._sigmas[index]
        return math.inf if sigma == 0 else math.log(1 - sigma) - math.log(sigma)

    def _terms(self, index: int) -> tuple[float, float, float]:
        """h, exp(-h) - 1, and how far the estimate before the last one lies back, in units of h."""
        h = self._log_ratio(index + 1) - self._log_ratio(index)
        back = (self._log_ratio(index - 1) - self._log_ratio(index)) / h if self._order == 2 else 1.0
        return h, math.expm1(-h), back

    def _predict(self, index: int) -> list[Tensor]:
        _, decay, back = self._terms(index)
        ratio, share = self._sigmas[index + 1] / self._sigmas[index], 1 - self._sigmas[index + 1]
        out = [ratio * x - share * decay * clean for x, clean in zip(self._before, self._clean[-1], strict=True)]
        if self._order == 2:
            pairs = zip(out, *self._clean, strict=True)
            out = [x - share * decay * 0.5 * (older - newer) / back for x, older, newer in pairs]
        return out

    def _correct(self, index: int, clean: Sequence[Tensor]) -> list[Tensor]:
        """x at sigma[index] anew, now that its clean estimate is known."""
        h, decay, back = self._terms(index - 1)
        ratio, share = self._sigmas[index] / self._sigmas[index - 1], 1 - self._sigmas[index]
        weights = _corrector_weights(h, decay, back, self._order)
        out = []
        for position, (x, newest) in enumerate(zip(self._before, clean, strict=True)):
            held = self._clean[-1][position]
            change = weights[-1] * (newest - held)
            if self._order == 2:
                change = change + weights[0] * (self._clean[-2][position] - held) / back
            out.append(ratio * x - share * decay * (held + change))
        return out


def _corrector_weights(h: float, decay: float, back: float, order: int) -> tuple[float, ...]:
    if order == 1:
        return (0.5,)
    first = decay / -h - 1
    second = first / -h - 0.5
    b = (first / decay, 2 * second / decay)
    outer = (b[1] - back * b[0]) / (1 - back)  # of [[1, 1], [back, 1]] w = b
    return b[0] - outer, outer
