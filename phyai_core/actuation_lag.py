"""How far the robot follows behind its commands, from what was commanded and what was measured.

Both tracks are laid on one grid and their speeds are compared at every shift: the lag is the shift at which they agree
best, the confidence the correlation there. It needs motion; a robot at rest tells nothing, and the last answer stands.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

CONFIDENT = 0.9  # correlation from which a lag counts as measured
LONGEST_LAG_S = 0.5
SHORTEST_TRACK_S = 1.0  # of motion, beside the lag itself
STEPS_PER_TICK = 8  # of the grid
SLOWEST = 0.01  # units/s, RMS speed below which a joint is at rest


@dataclass(frozen=True)
class Lag:
    """`seconds` and `confidence` (0 to 1) are NaN before the first answer."""

    seconds: float = math.nan
    confidence: float = math.nan

    @property
    def is_measured(self) -> bool:
        return self.confidence >= CONFIDENT


class ActuationLag:
    """`note_*` belong to the control thread, `update` to any other. Times are ROS time, rows [A] in action units."""

    def __init__(self, action_dim: int, dt_s: float, seconds: float = 4.0) -> None:
        rows = max(16, round(seconds / dt_s))
        self._dt_s = dt_s
        self._commands, self._states = _Track(rows, action_dim), _Track(rows, action_dim)
        self._lock = threading.Lock()
        self.latest = Lag()

    def note_command(self, reached_ns: int, row: ArrayLike) -> None:
        """`row` is what the controller shall have reached at `reached_ns`."""
        with self._lock:
            self._commands.push(reached_ns, row)

    def note_state(self, stamp_ns: int, measured: ArrayLike) -> None:
        """Joint positions as they were at `stamp_ns`."""
        with self._lock:
            self._states.push(stamp_ns, measured)

    def clear(self) -> None:
        """The commands were interrupted: what was seen before does not belong to what comes."""
        with self._lock:
            self._commands.clear()
            self._states.clear()

    def update(self) -> Lag:
        """Estimate anew; keeps the last answer where there was too little motion for one."""
        with self._lock:
            commands, states = self._commands.read(), self._states.read()
        found = estimate_lag(*commands, *states, self._dt_s / STEPS_PER_TICK)
        if found is not None:
            self.latest = found
        return self.latest


def estimate_lag(
    command_ns: Int64Array, commands: Float64Array, state_ns: Int64Array, states: Float64Array, step_s: float
) -> Lag | None:
    """Stamps [T] with rows [T, A] of each track. None where they overlap too little or nothing moves."""
    if len(command_ns) < 3 or len(state_ns) < 3:
        return None
    command_s, state_s = ((stamps_ns - command_ns[0]) * 1e-9 for stamps_ns in (command_ns, state_ns))
    reach_s, shifts = STEPS_PER_TICK * step_s, int(LONGEST_LAG_S / step_s)
    start_s = max(command_s[0], state_s[0]) + reach_s
    end_s = min(command_s[-1], state_s[-1]) - reach_s
    grid_s = np.arange(start_s, end_s, step_s)
    if len(grid_s) < shifts + SHORTEST_TRACK_S / step_s:
        return None
    wanted, measured = (_speeds(grid_s, reach_s, *track) for track in ((command_s, commands), (state_s, states)))
    moving = np.sqrt(np.mean(wanted**2, axis=0)) > SLOWEST
    if not moving.any():
        return None
    scores = _correlate(wanted[:, moving], measured[:, moving], shifts)
    best = int(np.argmax(scores))
    confidence = float(np.clip(scores[best], 0.0, 1.0))
    return Lag((best + _peak_offset(scores, best)) * step_s, confidence)


def _speeds(grid_s: Float64Array, reach_s: float, times_s: Float64Array, rows: Float64Array) -> Float64Array:
    """Over two ticks, not over a grid step: linear pieces between samples would bend the peak."""
    columns = [
        np.interp(grid_s + reach_s, times_s, column) - np.interp(grid_s - reach_s, times_s, column) for column in rows.T
    ]
    return np.stack(columns, axis=1) / (2.0 * reach_s)


def _correlate(wanted: Float64Array, measured: Float64Array, shifts: int) -> Float64Array:
    """Correlation over all joints for `measured` lying 0 to `shifts` steps behind, each over the same stretch."""
    late = _normalise(measured[shifts:])
    return np.array([np.sum(_normalise(wanted[shifts - n : len(wanted) - n]) * late) for n in range(shifts + 1)])


def _normalise(speeds: Float64Array) -> Float64Array:
    """Mean 0 per joint and length 1 over all of them."""
    centred = speeds - speeds.mean(axis=0)
    length = np.linalg.norm(centred)
    return centred / length if length > 0 else centred


def _peak_offset(scores: Float64Array, best: int) -> float:
    """Where between the steps the peak lies, by a parabola through it and its neighbours."""
    if not 0 < best < len(scores) - 1:
        return 0.0
    before, here, after = scores[best - 1 : best + 2]
    curvature = before - 2.0 * here + after
    return float(0.5 * (before - after) / curvature) if curvature < 0 else 0.0


class _Track:
    """The last rows, overwritten in place. Not locked."""

    def __init__(self, size: int, width: int) -> None:
        self._stamps_ns = np.zeros(size, np.int64)
        self._rows = np.zeros((size, width))
        self._count, self._newest_ns = 0, -1

    def push(self, stamp_ns: int, row: ArrayLike) -> None:
        if stamp_ns <= self._newest_ns:
            return
        place = self._count % len(self._rows)
        self._stamps_ns[place], self._rows[place] = stamp_ns, row
        self._count, self._newest_ns = self._count + 1, stamp_ns

    def clear(self) -> None:
        self._count, self._newest_ns = 0, -1

    def read(self) -> tuple[Int64Array, Float64Array]:
        """Stamps [T] and rows [T, A], oldest first."""
        size = len(self._rows)
        held, start = min(self._count, size), self._count % size if self._count > size else 0
        return np.roll(self._stamps_ns, -start)[:held], np.roll(self._rows, -start, axis=0)[:held]
