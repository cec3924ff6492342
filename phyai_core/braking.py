"""The end of a trajectory: how joints come to rest inside their limits, and the velocities of the rows before.

Row i of a chunk is reached at the end of its tick, so rows are dt apart and row 0 lies dt after `previous_row`.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64Array = NDArray[np.float64]


def braking_tail(
    position: ArrayLike, velocity: ArrayLike, max_acceleration: ArrayLike, dt_s: float
) -> tuple[Float64Array, Float64Array]:
    """Rows that bring every joint to rest at the same time, straight in joint space: positions and velocities [K, A].

    `position`, `velocity` [A] are those of the last row before the tail, `max_acceleration` [A] > 0 the limits. The
    first row lies dt after `position`; the last has velocity exactly 0; K >= 1. Deceleration is constant,
    v(t) = v (1 - t / T), T being the braking time of the slowest joint rounded up to whole rows. So a joint travels
    v T / 2, positions are the exact integral of the velocities, and a cubic interpolation of the rows is that same
    parabola, without overshoot.
    Raises ValueError for an unusable limit or a non-finite state.
    """
    position, velocity = np.asarray(position, float), np.asarray(velocity, float)
    limit = np.broadcast_to(np.asarray(max_acceleration, float), velocity.shape)
    if not (np.isfinite(limit).all() and (limit > 0).all()):
        raise ValueError(f"max_acceleration is {limit.tolist()}; allowed are finite values > 0 for every joint.")
    if not (np.isfinite(position).all() and np.isfinite(velocity).all()):
        raise ValueError("A braking tail needs a finite position and velocity for every joint.")
    braking_s = float(np.max(np.abs(velocity) / limit, initial=0.0))
    count = max(1, math.ceil(braking_s / dt_s - 1e-9))
    row = np.arange(1, count + 1)[:, None]  # [K, 1]
    velocities = velocity * (1.0 - row / count)
    velocities[-1] = 0.0  # also turns the -0.0 of a joint moving backwards into 0.0
    positions = position + velocity * dt_s * (row - row**2 / (2.0 * count))
    return positions, velocities


def row_velocities(rows: ArrayLike, dt_s: float, previous_row: ArrayLike) -> Float64Array:
    """Velocities [R, A] at rows [R, A] for cubic interpolation; `previous_row` [A] lies dt before row 0.

    Central differences, one-sided at the last row. A joint that turns around at a row has velocity 0 there, and no
    velocity exceeds three times the smaller neighbouring slope: then the cubic is monotone between rows (Fritsch and
    Carlson, 1980), so it never leaves the span of the rows, and position limits that hold for rows hold in between.
    """
    rows = np.asarray(rows, float)
    slopes = np.diff(np.vstack([np.asarray(previous_row, float)[None], rows]), axis=0) / dt_s  # [R, A]
    before, after = slopes[:-1], slopes[1:]
    bound = 3.0 * np.minimum(np.abs(before), np.abs(after))
    central = np.clip((before + after) / 2.0, -bound, bound)
    velocities = slopes.copy()
    velocities[:-1] = np.where(before * after > 0.0, central, 0.0)
    return velocities


@dataclass(frozen=True)
class Brake:
    """How a robot is brought to rest: `max_acceleration` [A], and `max_jerk` [A] where that is limited too.

    Raises ValueError where jerk is limited and ruckig is not installed.
    """

    max_acceleration: Float64Array
    dt_s: float
    max_jerk: Float64Array | None = None

    def __post_init__(self) -> None:
        if self.max_jerk is not None and importlib.util.find_spec("ruckig") is None:
            raise ValueError("limits.max_jerk needs the package ruckig: pip install ruckig, or leave it empty.")

    def tail(self, position: Float64Array, velocity: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Rows to rest as in `braking_tail`."""
        if self.max_jerk is None:
            return braking_tail(position, velocity, self.max_acceleration, self.dt_s)
        return jerk_limited_tail(position, velocity, self.max_acceleration, self.max_jerk, self.dt_s)


def jerk_limited_tail(
    position: ArrayLike, velocity: ArrayLike, max_acceleration: ArrayLike, max_jerk: ArrayLike, dt_s: float
) -> tuple[Float64Array, Float64Array]:
    """As `braking_tail`, with limited jerk (ruckig, time-optimal), starting from no acceleration.

    Joints stop together. The last row is exact; the one before it lies at most dt earlier. Raises ValueError for what
    ruckig refuses.
    """
    from ruckig import ControlInterface, InputParameter, Result, Ruckig, Trajectory

    position, velocity = np.asarray(position, float), np.asarray(velocity, float)
    if not (np.isfinite(position).all() and np.isfinite(velocity).all()):
        raise ValueError("A braking tail needs a finite position and velocity for every joint.")
    joints = len(position)
    motion = InputParameter(joints)
    motion.control_interface = ControlInterface.Velocity
    motion.current_position, motion.current_velocity = position.tolist(), velocity.tolist()
    motion.target_velocity = motion.target_acceleration = [0.0] * joints
    motion.max_acceleration = np.broadcast_to(np.asarray(max_acceleration, float), joints).tolist()
    motion.max_jerk = np.broadcast_to(np.asarray(max_jerk, float), joints).tolist()
    trajectory = Trajectory(joints)
    result = Ruckig(joints).calculate(motion, trajectory)
    if result not in (Result.Working, Result.Finished):
        raise ValueError(f"no braking tail from velocity {velocity.tolist()}: ruckig says {result.name}.")
    count = max(1, math.ceil(trajectory.duration / dt_s - 1e-9))
    times_s = [min((i + 1) * dt_s, trajectory.duration) for i in range(count)]
    states = [trajectory.at_time(time_s) for time_s in times_s]
    positions, velocities = np.array([s[0] for s in states]), np.array([s[1] for s in states])
    velocities[-1] = 0.0
    return positions, velocities
