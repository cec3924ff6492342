"""Commands of a replay against a recorded track: error and lag per joint, where they part, what the gripper does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_ros.replay.action_log import ActionLog
from phyai_ros.replay.clockwork import NS_PER_S
from phyai_ros.replay.open_loop import OpenLoop, compare_chunks
from phyai_ros.replay.reference import Track

LAG_REACH_S = 1.0  # lags up to this are looked for
LEAST_TRAVEL = 1e-3  # a joint that moves less, rad or m, has no lag to speak of
PART_SHARE, PART_LEAST, PART_TICKS = 0.25, 0.02, 5  # parted: off by a quarter of the joint's range for 5 ticks
GRIPPER_REACH_S = 1.0  # events further apart do not belong together


@dataclass(frozen=True)
class JointError:
    """One joint, in its unit. `lag_s` > 0: the replay comes later than the track; NaN where it cannot be told."""

    name: str
    mean: float
    rms: float
    p95: float
    largest: float
    lag_s: float


@dataclass(frozen=True)
class GripperEvent:
    """A crossing of the middle of the range, bag time. `offset_s` is replay minus track, NaN without a partner."""

    time_s: float
    closes: bool
    offset_s: float


@dataclass(frozen=True)
class Comparison:
    """All of it. `first_parting_s` is bag time; NaN where they never part. `ticks` is how many could be compared."""

    topic: str
    ticks: int
    joints: tuple[JointError, ...]
    first_parting_s: float
    parting_joint: str
    gripper: tuple[GripperEvent, ...]
    gripper_unmatched: int  # events of the track that the replay has not
    open_loop: OpenLoop

    @property
    def mean_error(self) -> float:
        """Mean absolute error over ticks and joints; NaN without any."""
        return float(np.mean([joint.mean for joint in self.joints])) if self.ticks else math.nan

    def to_dict(self) -> dict[str, Any]:
        return {"mean_error": self.mean_error, **asdict(self), "open_loop": self.open_loop.to_dict()}


def compare(log: ActionLog, track: Track, gripper_joints: Sequence[str] = ()) -> Comparison:
    """Every row that was commanded against the track at the instant that row stands for."""
    stamps_ns, rows = log.rows()
    truth = track.at(stamps_ns + round(track.topic.shift_s * NS_PER_S))
    known = ~np.isnan(truth).any(axis=1)
    stamps_ns, rows, truth = stamps_ns[known], rows[known], truth[known]
    parting, joint = _find_parting(rows, truth)
    events, unmatched = _compare_gripper(log, stamps_ns, rows, truth, gripper_joints)
    return Comparison(
        topic=track.topic.name,
        ticks=len(rows),
        joints=tuple(_judge_joint(log, index, stamps_ns, rows, truth) for index in range(len(log.names))),
        first_parting_s=math.nan if parting is None else log.since_start_s(int(stamps_ns[parting])),
        parting_joint="" if parting is None else log.names[joint],
        gripper=events,
        gripper_unmatched=unmatched,
        open_loop=compare_chunks(log, track),
    )


def _judge_joint(log: ActionLog, index: int, stamps_ns: NDArray, rows: NDArray, truth: NDArray) -> JointError:
    if not len(rows):
        return JointError(log.names[index], *(math.nan,) * 5)
    error = np.abs(rows[:, index] - truth[:, index])
    return JointError(
        log.names[index],
        float(error.mean()),
        float(np.sqrt((error**2).mean())),
        float(np.percentile(error, 95)),
        float(error.max()),
        _find_lag(_longest_stretch(stamps_ns, log.dt_s), rows[:, index], truth[:, index], log.dt_s),
    )


def _longest_stretch(stamps_ns: NDArray[np.int64], dt_s: float) -> slice:
    """The longest run of ticks without a gap."""
    breaks = np.flatnonzero(np.diff(stamps_ns) > 1.5 * dt_s * NS_PER_S) + 1
    edges = [0, *breaks.tolist(), len(stamps_ns)]
    start, stop = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    return slice(start, stop)


def _find_lag(where: slice, row: NDArray[np.float64], truth: NDArray[np.float64], dt_s: float) -> float:
    """The shift with the largest correlation of the two, to a part of a tick by a parabola through its neighbours."""
    row, truth = row[where], truth[where]
    reach = min(round(LAG_REACH_S / dt_s), len(row) // 3)
    if reach < 1 or np.ptp(row) < LEAST_TRAVEL or np.ptp(truth) < LEAST_TRAVEL:
        return math.nan
    shifts = np.arange(-reach, reach + 1)
    scores = np.array([_correlation(row, truth, int(shift)) for shift in shifts])
    best = int(scores.argmax())
    if best in (0, len(shifts) - 1):
        return math.nan
    before, at, after = scores[best - 1 : best + 2]
    bend = before - 2 * at + after
    return float((shifts[best] + (0.5 * (before - after) / bend if bend else 0.0)) * dt_s)


def _correlation(row: NDArray[np.float64], truth: NDArray[np.float64], shift: int) -> float:
    late = row[max(0, shift) : len(row) + min(0, shift)]
    early = truth[max(0, -shift) : len(truth) + min(0, -shift)]
    late, early = late - late.mean(), early - early.mean()
    size = float(np.sqrt((late**2).sum() * (early**2).sum()))
    return float((late * early).sum()) / size if size else -1.0


def _find_parting(rows: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[int | None, int]:
    """The first tick from which on a joint is far off for several ticks, and that joint."""
    if not len(rows):
        return None, 0
    allowed = np.maximum(PART_LEAST, PART_SHARE * np.ptp(truth, axis=0))
    off = np.abs(rows - truth) > allowed  # [T, A]
    for tick in range(len(off) - PART_TICKS + 1):
        for joint in np.flatnonzero(off[tick]):
            if off[tick : tick + PART_TICKS, joint].all():
                return tick, int(joint)
    return None, 0


def _compare_gripper(
    log: ActionLog, stamps_ns: NDArray, rows: NDArray, truth: NDArray, names: Sequence[str]
) -> tuple[tuple[GripperEvent, ...], int]:
    wanted = [index for index, name in enumerate(log.names) if name in names or (not names and "gripper" in name)]
    events, unmatched = [], 0
    for index in wanted if len(rows) else []:
        middle = 0.5 * (truth[:, index].min() + truth[:, index].max())
        if np.ptp(truth[:, index]) < LEAST_TRAVEL:
            continue
        mine = _crossings(stamps_ns, rows[:, index], middle)
        for time_ns, closes in _crossings(stamps_ns, truth[:, index], middle):
            offsets = [(other - time_ns) / NS_PER_S for other, kind in mine if kind == closes]
            nearest = min(offsets, key=abs, default=math.inf)
            matched = abs(nearest) <= GRIPPER_REACH_S
            unmatched += not matched
            events.append(GripperEvent(log.since_start_s(time_ns), closes, nearest if matched else math.nan))
    return tuple(events), unmatched


def _crossings(stamps_ns: NDArray[np.int64], values: NDArray[np.float64], middle: float) -> list[tuple[int, bool]]:
    above = values > middle
    return [(int(stamps_ns[i]), bool(above[i - 1])) for i in np.flatnonzero(np.diff(above)) + 1]
