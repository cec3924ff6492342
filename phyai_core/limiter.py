"""Keeps a whole chunk inside position, velocity, acceleration and jerk limits, by making it slower.

The rows are a path through joint space; what may change is how fast it is travelled. With u_j the place on the path at
the end of period j and s_j = u_{j+1} - u_j <= 1 its speed (1: as planned), s is bounded by each joint's velocity limit
on the segment under way, by 1 / r overall, and changes in a period by at most `gain` times what the acceleration limits
allow on that segment. The first pair (r, gain) on a coarse grid, slowest last, whose resampled rows keep every limit is
taken. A stop has to end before the position limits too, wherever it begins. Rows outside the position bounds are moved
onto them before: no way of travelling cures those. Row i is reached at the end of period i. R rows, A joints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from phyai_core.braking import row_velocities

Array = NDArray[np.float64]
TOLERANCE = 1.01  # rows are float32, and differences of them are divided by dt up to three times
SLOWDOWNS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)
GAINS = (1.0, 0.7, 0.4, 0.2, 0.1)
KINDS = ("velocity limit", "acceleration limit", "jerk limit", "room to stop before its position limit")
ROOM_TOLERANCE = 1e-3  # rad or m


@dataclass(frozen=True)
class JointLimits:
    """Limits per joint [A], infinite where there is none. Raises ValueError when a list has the wrong length."""

    names: tuple[str, ...]
    velocity: Array
    acceleration: Array
    jerk: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        for name in ("velocity", "acceleration", "jerk", "lower", "upper"):
            values = np.asarray(getattr(self, name), float)
            if values.shape != (len(self.names),):
                raise ValueError(f"{name} limits {values.tolist()}: one for each of {', '.join(self.names)} is needed.")
            object.__setattr__(self, name, values)

    @property
    def derivatives(self) -> tuple[Array, Array, Array]:
        return self.velocity, self.acceleration, self.jerk


@dataclass(frozen=True)
class Limited:
    """Rows inside the limits [R, A]; `places` [R]: where on the planned rows each one lies, in rows from the first."""

    rows: Array
    places: Array
    slowdown: float = 1.0  # periods used for each period planned
    joints: tuple[int, ...] = ()  # that asked for a change
    reasons: tuple[str, ...] = field(default=())

    @property
    def changed(self) -> bool:
        return bool(self.joints)


class Limiter:
    """`max_slowdown` and `max_clip` bound what may be changed; beyond them a chunk is refused."""

    def __init__(self, limits: JointLimits, dt_s: float, max_slowdown: float = 3.0, max_clip: float = 0.1) -> None:
        self.limits, self._dt_s = limits, dt_s
        self._max_slowdown, self._max_clip = max_slowdown, max_clip

    def fit(self, rows: Array, before: Sequence[Array]) -> Limited | str:
        """The rows made to fit, or why they cannot be. `before`: where the joints were told to be at the last period
        ends, oldest first, the last one being now; one alone means at rest. All finite."""
        rows, before = np.asarray(rows, float), [np.asarray(row, float) for row in before]
        inside = np.clip(rows, self.limits.lower, self.limits.upper)
        moved = np.abs(rows - inside).max(axis=0)
        if moved.max() > self._max_clip:
            worst = int(moved.argmax())
            return (
                f"{self.limits.names[worst]} goes {moved[worst]:.3f} beyond its position limits, allowed is "
                f"{self._max_clip:g} (limits.max_clip_rad)"
            )
        excess = self._excess(inside, before)
        if not (excess > TOLERANCE).any():
            return self._report(inside, np.arange(len(rows), dtype=float), moved, excess)
        return self._slow_down(inside, before, moved, excess)

    def _slow_down(self, rows: Array, before: Sequence[Array], moved: Array, excess: Array) -> Limited | str:
        for slowest in SLOWDOWNS:
            if slowest > self._max_slowdown:
                break
            for gain in GAINS:
                places = self._travel(rows, before, 1.0 / slowest, gain)
                slowdown = float(len(rows) / max(places[-1] + 1.0, 1e-9))
                if slowdown > self._max_slowdown:
                    continue
                resampled = self._resample(rows, before[-1], places + 1.0)
                if not (self._excess(resampled, before) > TOLERANCE).any():
                    return self._report(resampled, places, moved, excess, slowdown)
        kind, joint = np.unravel_index(int(excess.argmax()), excess.shape)
        return (
            f"{self.limits.names[joint]} would go at {excess[kind, joint]:.1f} times its {KINDS[kind]}, "
            f"more than a slow-down of {self._max_slowdown:g} cures (limits.max_slowdown)"
        )

    def _excess(self, rows: Array, before: Sequence[Array]) -> Array:
        """Largest |velocity|, |acceleration|, |jerk| over their limits, braking distance over the room left [4, A]."""
        past = [before[0]] * (4 - len(before)) + list(before[-4:])  # at rest before what is known
        values = np.vstack([*past, rows])
        result = np.zeros((4, rows.shape[1]))
        result[3] = self._room_needed(rows, before[-1])
        for order, limit in enumerate(self.limits.derivatives):
            values = np.diff(values, axis=0) / self._dt_s
            result[order] = np.abs(values[3 - order :]).max(axis=0, initial=0.0) / limit
        return result

    def _room_needed(self, rows: Array, now: Array) -> Array:
        """The braking distance at each row over what is left to the position limit ahead, the largest [A]."""
        velocity = np.diff(np.vstack([now, rows]), axis=0) / self._dt_s
        braking = velocity**2 / (2 * self.limits.acceleration) + np.abs(velocity) * self._dt_s / 2 - ROOM_TOLERANCE
        room = np.where(velocity > 0, self.limits.upper - rows, rows - self.limits.lower)
        return np.max(np.maximum(braking, 0.0) / np.maximum(room, 1e-6), axis=0, initial=0.0)

    def _travel(self, rows: Array, before: Sequence[Array], top: float, gain: float) -> Array:
        """Places on the path after each period [R]; -1 is now, 0 the first row."""
        path, slopes = _cubic(rows, before[-1])
        middle = 1.5 * np.diff(path, axis=0) - 0.25 * (slopes[:-1] + slopes[1:])
        steps = np.abs([slopes[:-1], middle, slopes[1:]]).max(axis=0)  # [R, A] steepest on each segment
        with np.errstate(divide="ignore"):
            bound = np.minimum(np.min(self.limits.velocity * self._dt_s / steps, axis=1), top)  # [R] by segment
            gains = np.minimum(gain * np.min(self.limits.acceleration * self._dt_s**2 / steps, axis=1), 1.0)
        for i in range(len(bound) - 2, -1, -1):  # slow down in time for what comes
            bound[i] = min(bound[i], np.sqrt(bound[i + 1] ** 2 + 2 * gains[i]))
        speed, place, places = self._speed_now(path, before), 0.0, []
        for _ in range(len(rows)):
            segment = min(int(place), len(bound) - 1)
            speed = min(max(bound[segment], speed - gains[segment]), speed + gains[segment])
            place = min(place + max(speed, 1e-3), float(len(rows)))
            places.append(place)
        return np.array(places) - 1.0

    def _speed_now(self, path: Array, before: Sequence[Array]) -> float:
        """How fast the path is being travelled already, in rows per period."""
        if len(before) < 2:
            return 0.0
        step, ahead = before[-1] - before[-2], path[1] - path[0]
        square = float(ahead @ ahead)
        return min(1.0, max(0.0, float(step @ ahead) / square)) if square > 0 else 1.0

    def _resample(self, rows: Array, now: Array, places: Array) -> Array:
        """The path at `places` [R], 0 being now: cubic between rows, never beyond them."""
        path, slopes = _cubic(rows, now)
        left = np.minimum(places.astype(int), len(rows) - 1)
        t = (places - left)[:, None]
        a, b, va, vb = path[left], path[left + 1], slopes[left], slopes[left + 1]
        step = b - a
        return a + t * (va + t * (3 * step - 2 * va - vb + t * (va + vb - 2 * step)))

    def _report(self, rows: Array, places: Array, moved: Array, excess: Array, slowdown: float = 1.0) -> Limited:
        joints, reasons = [], []
        for joint, name in enumerate(self.limits.names):
            kind = int(excess[:, joint].argmax())
            if moved[joint] > 0:
                reasons.append(f"{name} moved by {moved[joint]:.3f} into its position limits")
            if slowdown > 1.0 and excess[kind, joint] > TOLERANCE:
                reasons.append(f"{name} at {excess[kind, joint]:.2f} times its {KINDS[kind]}")
            if moved[joint] > 0 or (slowdown > 1.0 and excess[kind, joint] > TOLERANCE):
                joints.append(joint)
        return Limited(rows, places, slowdown, tuple(joints), tuple(reasons))


def _cubic(rows: Array, now: Array) -> tuple[Array, Array]:
    """The path through `now` and the rows [R + 1, A], and its slopes there, per row."""
    path = np.vstack([now, rows])
    return path, np.vstack([(path[1] - path[0])[None], row_velocities(rows, 1.0, now)])
