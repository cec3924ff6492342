"""Models of two ros2_control controllers, by the rules of their C++ sources (ros2_controllers, Humble to Rolling).

The simulated robot runs them, and tests of the outputs use them as the judge. No ROS, no clock: times are integer
nanoseconds given by the caller. Positions, velocities [A] are in the order of the controller's joints.

joint_trajectory_controller exists in two families that differ in what a new trajectory does to the running one:
`replace` (Humble, Jazzy, Kilted) forgets the old one at once; `splice` (ros2_controllers 6.8 and later, with
allow_trajectory_replacement) keeps it until the new one starts, and continues from its position and velocity there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FAMILIES = ("replace", "splice")
ZERO_VELOCITY = 1e-9  # below this the last point counts as standing still


@dataclass(frozen=True)
class Trajectory:
    """A trajectory message: positions [R, A], velocities [R, A] or None, and time_from_start of each point.

    `stamp_ns` 0 means: start at the first sample.
    """

    joint_names: tuple[str, ...]
    stamp_ns: int
    positions: Array
    velocities: Array | None
    times_ns: tuple[int, ...]

    @classmethod
    def from_message(cls, message: Any) -> Trajectory:
        """From a trajectory_msgs/JointTrajectory. Raises ValueError when its points differ in length."""
        points = message.points
        has_velocities = any(len(point.velocities) for point in points)
        try:
            positions = np.array([point.positions for point in points], dtype=float)
            velocities = np.array([point.velocities for point in points], dtype=float) if has_velocities else None
        except ValueError as error:
            raise ValueError("points of different lengths") from error
        times_ns = tuple(to_ns(point.time_from_start) for point in points)
        return cls(tuple(message.joint_names), to_ns(message.header.stamp), positions, velocities, times_ns)


def to_ns(stamp: Any) -> int:
    """Nanoseconds of a builtin_interfaces Time or Duration."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


@dataclass(frozen=True)
class _Knot:
    """A point in absolute time; without velocity the neighbouring segments are straight lines."""

    time_ns: int
    position: Array
    velocity: Array | None


class JointTrajectoryController:
    """Position commands from trajectories: linear between position-only points, cubic where velocities are given."""

    def __init__(self, joints: Sequence[str], family: str = "replace", interpolate_from_desired_state: bool = True):
        if family not in FAMILIES:
            raise ValueError(f"jtc_family: {family!r} is not a family; choose one of {', '.join(FAMILIES)}.")
        self.joints = tuple(joints)
        self.family = family
        self.interpolate_from_desired_state = interpolate_from_desired_state
        self._new: Trajectory | None = None
        self._knots: list[_Knot] = []
        self._points = 0  # of the message behind the running trajectory; 0: holding
        self._command = np.zeros(len(self.joints))
        self._velocity = np.zeros(len(self.joints))

    def activate(self, position: Array) -> None:
        """Hold `position` [A] and forget every trajectory."""
        self._new, self._knots, self._points = None, [], 0
        self._command = np.array(position, dtype=float)
        self._velocity = np.zeros(len(self.joints))

    def accept(self, trajectory: Trajectory, now_ns: int) -> str | None:
        """Take a message in. Returns why it is rejected (the running trajectory then goes on), or None.

        Numbers that are not finite are not looked for, as in the original.
        """
        reason = self._find_fault(trajectory, now_ns)
        if reason is None:
            self._new = trajectory
        return reason

    def update(self, now_ns: int, period_ns: int, position: Array, velocity: Array) -> Array:
        """One control cycle with the measured state at `now_ns`: the command [A] for the end of the cycle."""
        if self._new is not None:
            self._adopt(self._new, now_ns, position, velocity)
            self._new = None
        if self._knots:
            self._command, self._velocity = self._sample(now_ns + period_ns)
        return self._command.copy()

    @property
    def reference(self) -> tuple[Array, Array]:
        """Position and velocity [A] of the last command."""
        return self._command.copy(), self._velocity.copy()

    def _find_fault(self, trajectory: Trajectory, now_ns: int) -> str | None:
        columns = self._find_column_fault(trajectory)
        if columns is not None:
            return columns
        times_ns = trajectory.times_ns
        if trajectory.velocities is not None and np.any(np.abs(trajectory.velocities[-1]) > ZERO_VELOCITY):
            return "the velocity of the last point is not zero"
        if any(later <= earlier for earlier, later in pairwise(times_ns)) or times_ns[0] < 0:
            return "time_from_start is not strictly increasing"
        if trajectory.stamp_ns != 0 and trajectory.stamp_ns + times_ns[-1] < now_ns:
            return "non-zero start time that ends in the past"
        return None

    def _find_column_fault(self, trajectory: Trajectory) -> str | None:
        names = trajectory.joint_names
        if len(names) != len(self.joints):
            return f"{len(names)} joint names for {len(self.joints)} joints"
        if unknown := sorted(set(names) - set(self.joints)):
            return f"unknown joint {', '.join(unknown)}"
        shape = (len(trajectory.times_ns), len(names))
        if shape[0] == 0:
            return "no points"
        if trajectory.positions.shape != shape:
            return f"positions of shape {trajectory.positions.shape} where {shape} is needed"
        if trajectory.velocities is not None and trajectory.velocities.shape != shape:
            return f"velocities of shape {trajectory.velocities.shape} where {shape} is needed"
        return None

    def _adopt(self, trajectory: Trajectory, now_ns: int, position: Array, velocity: Array) -> None:
        points = len(trajectory.times_ns)
        start_ns = trajectory.stamp_ns or now_ns
        if self.family == "splice" and self._points > 1 and points > 1:
            start_ns = max(start_ns, now_ns)  # a start in the past means now: no point is skipped
            anchor = _Knot(start_ns, *self._sample(start_ns))
            past = max(self._passed(now_ns) - 1, 0)
            kept = [knot for knot in self._knots[past:] if knot.time_ns < start_ns]
        else:
            kept = []
            state = (self._command, self._velocity) if self.interpolate_from_desired_state else (position, velocity)
            anchor = _Knot(now_ns, *(np.array(value, dtype=float) for value in state))
        points_ahead = self._knots_of(trajectory, start_ns)
        bridge = [anchor] if anchor.time_ns < points_ahead[0].time_ns else []  # else the start lies inside the message
        self._knots = [*kept, *bridge, *points_ahead]
        self._points = points

    def _knots_of(self, trajectory: Trajectory, start_ns: int) -> list[_Knot]:
        columns = [trajectory.joint_names.index(name) for name in self.joints]
        velocities = trajectory.velocities
        return [
            _Knot(
                start_ns + time_ns,
                trajectory.positions[i, columns],
                None if velocities is None else velocities[i, columns],
            )
            for i, time_ns in enumerate(trajectory.times_ns)
        ]

    def _sample(self, time_ns: int) -> tuple[Array, Array]:
        """Position and velocity at `time_ns`: points before it are passed over, after the last one it is held."""
        passed = self._passed(time_ns)
        if 0 < passed < len(self._knots):
            return interpolate(self._knots[passed - 1], self._knots[passed], time_ns)
        end = self._knots[0 if passed == 0 else -1]
        return end.position, np.zeros(len(self.joints))

    def _passed(self, time_ns: int) -> int:
        """How many knots lie at or before `time_ns`."""
        return bisect_right(self._knots, time_ns, key=lambda knot: knot.time_ns)


def interpolate(before: _Knot, after: _Knot, time_ns: int) -> tuple[Array, Array]:
    """Position and velocity [A] between two knots."""
    span_s = (after.time_ns - before.time_ns) * 1e-9
    t = (time_ns - before.time_ns) * 1e-9
    step = after.position - before.position
    if before.velocity is None or after.velocity is None:
        return before.position + step * (t / span_s), step / span_s
    v0, v1 = before.velocity, after.velocity
    c2 = (3 * step / span_s - 2 * v0 - v1) / span_s
    c3 = (-2 * step / span_s + v0 + v1) / span_s**2
    return before.position + t * (v0 + t * (c2 + t * c3)), v0 + t * (2 * c2 + t * 3 * c3)


class ForwardCommandController:
    """Passes on the last finite command for ever; a command of the wrong length switches the controller off."""

    def __init__(self, joints: Sequence[str]) -> None:
        self.joints = tuple(joints)
        self.active = True
        self._data: Array | None = None

    def activate(self, position: Array) -> None:
        """Start with no command: nothing is written until the first message."""
        self.active, self._data = True, None

    def accept(self, data: Array) -> str | None:
        """Take a command in. Returns why it is not followed, or None."""
        if not np.all(np.isfinite(data)):
            return "a number is not finite: the message is dropped"
        if len(data) != len(self.joints):
            self.active = False
            return f"{len(data)} values for {len(self.joints)} joints: the controller is deactivated"
        self._data = np.array(data, dtype=float)
        return None

    def update(self) -> Array | None:
        """The command [A], or None while there is none to write."""
        return self._data if self.active and self._data is not None else None
