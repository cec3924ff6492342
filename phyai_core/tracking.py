"""Notices a robot that does not follow: a joint far from its command, or with a large effort, for too long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phyai_core.clock import NS_PER_S
from phyai_core.types import Fault, Reason

Array = NDArray[np.float64]


class TrackingGuard:
    """`max_error`, `max_effort` hold one bound per joint [A]; empty: not checked. Only what lasts `time_s` counts."""

    def __init__(
        self,
        names: tuple[str, ...],
        max_error: Sequence[float] = (),
        max_effort: Sequence[float] = (),
        time_s: float = 0.3,
    ) -> None:
        self._names, self._time_ns = names, round(time_s * NS_PER_S)
        self._max_error = np.array(max_error or [np.inf] * len(names))
        self._max_effort = np.array(max_effort or [np.inf] * len(names))
        self.clear()

    def clear(self) -> None:
        """Forget what was seen, as when the robot is at rest."""
        self._error_since_ns = np.full(len(self._names), -1, np.int64)  # -1: within the bound
        self._effort_since_ns = np.full(len(self._names), -1, np.int64)

    def check(self, now_ns: int, commands: Array, measured: Array, effort: Array | None = None) -> Fault | None:
        """`commands` [N, A] are the references of the last moments, oldest first, `measured` and `effort` [A].

        An arm follows with a lag, so the distance to the nearest of them counts.
        """
        error = self.error(commands, measured)
        joint = self._lasting(self._error_since_ns, error > self._max_error, now_ns)
        if joint is not None:
            text = f"{self._names[joint]} is {error[joint]:.3f} from its command for {self._time_ns / NS_PER_S:g} s"
            return Fault(Reason.FOLLOWING_ERROR, f"{text} (tracking.max_error: {self._max_error[joint]:g})")
        if effort is None:
            return None
        joint = self._lasting(self._effort_since_ns, np.abs(effort) > self._max_effort, now_ns)
        if joint is None:
            return None
        text = f"{self._names[joint]} has an effort of {effort[joint]:.2f} for {self._time_ns / NS_PER_S:g} s"
        return Fault(Reason.STALLED, f"{text} (tracking.max_effort: {self._max_effort[joint]:g})")

    @staticmethod
    def error(commands: Array, measured: Array) -> Array:
        """Distance [A] of each joint to the span of the recent commands."""
        low, high = commands.min(axis=0), commands.max(axis=0)
        return np.maximum(np.maximum(low - measured, measured - high), 0.0)

    def _lasting(self, since_ns: NDArray[np.int64], beyond: NDArray[np.bool_], now_ns: int) -> int | None:
        """The first joint beyond its bound for the whole time; `since_ns` is brought up to date."""
        since_ns[~beyond] = -1
        since_ns[beyond & (since_ns < 0)] = now_ns
        lasting = beyond & (now_ns - since_ns >= self._time_ns)
        return int(lasting.argmax()) if lasting.any() else None
