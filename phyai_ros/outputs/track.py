"""What a trajectory controller is going to do: rows of a chunk, then a braking tail. No ROS in here.

A `Track` is the reference at consecutive tick instants. It is what gets published, and also how the node knows where a
controller that runs by itself has got to, through ticks that the node missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phyai_core.braking import Brake, row_velocities
from phyai_ros.outputs.base import Array, Reference

BRAKING_TOLERANCE = 1.05  # along a bent path the speed of a joint does not fall quite evenly
MIN_POINTS = 2  # a controller never blends a trajectory of one point into the running one


@dataclass(frozen=True)
class Track:
    """Knot j is the reference at tick `start_tick` + j; knot 0 is where the track takes over, the last one is at rest.

    `positions`, `velocities` [R + 1, A]. The first `rows` knots after knot 0 are rows of a chunk, the others brake.
    """

    start_tick: int
    positions: Array
    velocities: Array
    rows: int

    @property
    def rest_tick(self) -> int:
        """The tick at whose instant the reference has come to rest."""
        return self.start_tick + len(self.positions) - 1

    def at(self, tick: int) -> Reference:
        """The reference at the instant of `tick`; before the first knot and after the last one theirs."""
        knot = min(max(tick - self.start_tick, 0), len(self.positions) - 1)
        return Reference(self.positions[knot], self.velocities[knot])

    def between(self, place: float, dt_s: float) -> Reference:
        """The reference at a fractional tick, as the controller interpolates it (cubic)."""
        left = int(np.floor(place))
        a, b, t = self.at(left), self.at(left + 1), place - left
        step, va, vb = b.position - a.position, a.velocity * dt_s, b.velocity * dt_s
        position = a.position + t * (va + t * (3 * step - 2 * va - vb + t * (va + vb - 2 * step)))
        velocity = va + t * (2 * (3 * step - 2 * va - vb) + 3 * t * (va + vb - 2 * step))
        return Reference(position, velocity / dt_s)

    def rows_left(self, tick: int) -> int:
        """Rows still to come at the instant of `tick`; 0 when the track brakes or rests."""
        return max(0, self.start_tick + self.rows - tick)


def rest_track(position: Array) -> Track:
    """The robot stands at `position` [A]."""
    return Track(0, position[None], np.zeros((1, len(position))), rows=0)


def chunk_track(tick: int, reference: Reference, rows: Array, brake: Brake) -> Track:
    """From `reference` at `tick` through `rows` [R, A], one per period, and on to rest.

    Raises ValueError when the rows are not finite.
    """
    if not np.isfinite(rows).all():
        raise ValueError("its rows hold a number that is not finite")
    velocities = row_velocities(rows, brake.dt_s, reference.position)
    tail = brake.tail(rows[-1], velocities[-1])
    return _join(tick, reference, (rows, velocities), tail)


def brake_track(tick: int, reference: Reference, brake: Brake) -> Track:
    """From `reference` at `tick` to rest."""
    none = np.empty((0, len(reference.position)))
    tail = brake.tail(reference.position, reference.velocity)
    return _join(tick, reference, (none, none), tail)


def brake_along(track: Track, tick: int, brake: Brake, lead: float = 0.0) -> Track:
    """From the reference of `track` at `tick` to rest along its own path, as it would have gone on but ever slower.

    Braking begins `lead` ticks later, < 1: until then a controller that splices follows the old trajectory at full
    speed. A path that turns too hard to be braked on within the limits is left straight ahead.
    """
    begin = track.between(tick + lead, brake.dt_s)
    shortest = len(brake.tail(begin.position, begin.velocity)[0])
    for count in range(shortest, shortest + 3):
        travel, speed = _slow_down(count, lead)
        states = [track.between(tick + lead + place, brake.dt_s) for place in travel]
        positions = np.array([state.position for state in states])
        velocities = np.array([state.velocity for state in states]) * speed[:, None]
        periods_s = brake.dt_s * np.array([1.0 - lead] + [1.0] * (count - 1))[:, None]
        changes = np.abs(np.diff(np.vstack([begin.velocity, velocities]), axis=0))
        if np.all(changes / periods_s <= brake.max_acceleration * BRAKING_TOLERANCE):
            return _from(track, tick, (positions, velocities))
    travel, speed = _slow_down(shortest + (lead > 0), lead)
    positions = begin.position + begin.velocity * brake.dt_s * travel[:, None]
    return _from(track, tick, (positions, begin.velocity * speed[:, None]))


def _slow_down(count: int, lead: float) -> tuple[Array, Array]:
    """At the `count` ticks to come: the way since `lead` in ticks of full speed, and the speed, falling from 1 to 0."""
    since, length = np.arange(1, count + 1) - lead, count - lead
    return since - since**2 / (2.0 * length), 1.0 - since / length


def _from(track: Track, tick: int, tail: tuple[Array, Array]) -> Track:
    none = np.empty((0, tail[0].shape[1]))
    return _join(tick, track.at(tick), (none, none), tail)


def _join(tick: int, reference: Reference, rows: tuple[Array, Array], tail: tuple[Array, Array]) -> Track:
    positions = np.vstack([reference.position[None], rows[0], tail[0]])
    velocities = np.vstack([reference.velocity[None], rows[1], tail[1]])
    if (lacking := MIN_POINTS + 1 - len(positions)) > 0:
        positions = np.vstack([positions, np.repeat(positions[-1:], lacking, axis=0)])
        velocities = np.vstack([velocities, np.zeros((lacking, velocities.shape[1]))])
    return Track(tick, positions, velocities, rows=len(rows[0]))


@dataclass(frozen=True)
class TrajectoryPlan:
    """One trajectory as published: positions and velocities [R, A] in the controller's order.

    Point i is due `times_ns`[i] after `stamp_ns`.
    """

    names: tuple[str, ...]
    stamp_ns: int
    positions: Array
    velocities: Array
    times_ns: tuple[int, ...]


def splice_plan(
    track: Track, stamp_ns: int, dt_ns: int, lead_ns: int, names: tuple[str, ...], order: Array
) -> TrajectoryPlan:
    """Only what is to come, starting `lead_ns` after the tick's stamp, so that the message is there by then.

    A controller that blends takes a start in the past for now and would run late by the way of the message. Points are
    due at the same instants whatever the lead. Smooth on such a controller, and on one that replaces the running
    trajectory but starts from its own last command (interpolate_from_desired_state).
    """
    points = len(track.positions) - 1
    times_ns = tuple(dt_ns * (j + 1) - lead_ns for j in range(points))
    return TrajectoryPlan(names, stamp_ns + lead_ns, track.positions[1:, order], track.velocities[1:, order], times_ns)


def replace_plan(
    track: Track, old: Track, past: int, stamp_ns: int, dt_ns: int, names: tuple[str, ...], order: Array
) -> TrajectoryPlan:
    """The same, preceded by `past` ticks of what was executed and stamped that much earlier.

    A controller that replaces trajectories skips points before now and so enters mid-way, on the reference, without a
    bridge from the measured state. The past is what was executed, not the new chunk's idea of it: no step at the seam.
    """
    past = min(past, track.start_tick - old.start_tick)
    history = [old.at(track.start_tick - j) for j in range(past - 1, 0, -1)]
    first = 1 if past == 0 else 0
    positions = np.vstack([*(r.position[None] for r in history), track.positions[first:]])
    velocities = np.vstack([*(r.velocity[None] for r in history), track.velocities[first:]])
    times_ns = tuple(dt_ns * (j + 1) for j in range(len(positions)))
    return TrajectoryPlan(names, stamp_ns - past * dt_ns, positions[:, order], velocities[:, order], times_ns)
