"""Guidance by gradient: the correction g that modes fd, fd_lagged and vjp add to the velocity (arXiv 2506.07339).

    clean = x + (1 - tau) v(x)        e = W (Y - clean)        g = (d clean / d x)^T e = e + (1 - tau) (d v / d x)^T e

`vjp` takes the derivative by automatic differentiation, and needs a network that torch can differentiate. The others
need forward passes only: the Jacobian of an exact flow is symmetric, so J^T e = J e is a derivative along e,

    g = e + (1 - tau) (v(x + h e) - v(x)) / h

`fd` spends one more forward per step on it; `fd_lagged` takes e of the step before, which makes it one forward of twice
the batch. Letters in shapes: B batch, H action horizon, A' model action dims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

VelocityField = Callable[
    [Any, Tensor, Tensor], Tensor
]  # (prefix, x [B, H, A'], flow time [B, H]) -> velocity [B, H, A']


class Point(NamedTuple):
    """Where one denoise step stands."""

    prefix: Any
    x: Tensor  # [B, H, A']
    flow_time: Tensor  # [B, H]

    @property
    def remaining(self) -> Tensor:
        """1 - tau, [B, H, 1]."""
        return 1.0 - self.flow_time[..., None]


class Guidance(Protocol):
    """One chunk's guidance; called once per denoise step, in order."""

    def __call__(self, field: VelocityField, point: Point, pull: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Velocity and g, both [B, H, A']. `pull` maps the clean estimate to e = W (Y - clean)."""


class FiniteDifference:
    """Mode fd."""

    def __init__(self, step: float) -> None:
        self._step = step

    def __call__(self, field: VelocityField, point: Point, pull: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        velocity = field(*point).float()
        error = pull(point.x + point.remaining * velocity)
        moved = field(*point._replace(x=point.x + self._step * error)).float()
        return velocity, error + point.remaining * (moved - velocity) / self._step


class LaggedDifference:
    """Mode fd_lagged: the first step has no error to look back on, and an exact flow asks for none there (g = 0)."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._last_error: Tensor | None = None

    def __call__(self, field: VelocityField, point: Point, pull: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        last = torch.zeros_like(point.x) if self._last_error is None else self._last_error
        pair = Point(
            prefix=tree_map_only(Tensor, lambda tensor: torch.cat([tensor, tensor]), point.prefix),
            x=torch.cat([point.x, point.x + self._step * last]),
            flow_time=torch.cat([point.flow_time, point.flow_time]),
        )
        velocity, moved = field(*pair).float().chunk(2)
        self._last_error = pull(point.x + point.remaining * velocity)
        return velocity, last + point.remaining * (moved - velocity) / self._step


class VectorJacobian:
    """Mode vjp. Not inside torch.inference_mode, which keeps nothing to differentiate."""

    def __init__(self, step: float) -> None:
        """`step` is not used: the derivative is exact."""

    def __call__(self, field: VelocityField, point: Point, pull: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = point.x.detach().requires_grad_()
            velocity = field(*point._replace(x=x)).float()
            if not velocity.requires_grad:
                # Differentiating a constant would quietly turn this into mode identity.
                raise ValueError(
                    "rtc.mode is 'vjp'; allowed for this policy are modes without differentiation, such as fd, "
                    "because its denoise step cuts the gradient."
                )
            clean = x + point.remaining * velocity
            (gradient,) = torch.autograd.grad(clean, x, pull(clean.detach()))
        return velocity.detach(), gradient


GUIDANCE: dict[str, Callable[[float], Guidance]] = {
    "fd": FiniteDifference,
    "fd_lagged": LaggedDifference,
    "vjp": VectorJacobian,
}


def make_guidance(mode: str, step: float) -> Guidance:
    """The guidance of one chunk; `step` is h."""
    return GUIDANCE[mode](step)
