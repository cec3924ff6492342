"""How well whole chunks foretell the track, against the simplest foretelling: that nothing will move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_ros.replay.action_log import ActionLog
from phyai_ros.replay.clockwork import NS_PER_S
from phyai_ros.replay.reference import Track


@dataclass(frozen=True)
class OpenLoop:
    """Mean absolute errors over the chunks, in units of the joints.

    `by_row` [H] is the error of row i of a chunk, `hold_last_by_row` [H] that of the pose at the launch; `by_joint` and
    `hold_last_by_joint` [A] are means over rows. NaN where nothing could be compared.
    """

    chunks: int
    error: float
    hold_last: float
    by_row: tuple[float, ...]
    hold_last_by_row: tuple[float, ...]
    by_joint: tuple[float, ...]
    hold_last_by_joint: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Error by error of holding: below 1 the policy knows something."""
        return self.error / self.hold_last if self.hold_last > 0 else math.nan

    def to_dict(self) -> dict[str, Any]:
        return {"ratio": self.ratio, **vars(self)}


def compare_chunks(log: ActionLog, track: Track) -> OpenLoop:
    """Every row of every adopted chunk, executed or not, as far as the track reaches without a gap."""
    errors, holds = [], []
    dt_ns = round(log.dt_s * NS_PER_S)
    for line in log.chunks:
        rows = line.chunk.actions  # [H, A]
        times_ns = line.launch_ns + dt_ns * np.arange(len(rows)) + round(track.topic.shift_s * NS_PER_S)
        truth = _until_gap(track.at(times_ns))
        start = track.at(np.array([line.launch_ns + round(track.topic.shift_s * NS_PER_S) - dt_ns]))[0]
        if np.isnan(start).any():
            continue
        errors.append(np.abs(rows - truth))
        holds.append(np.abs(start - truth))
    if not errors or np.isnan(errors).all():
        return OpenLoop(0, *(math.nan,) * 2, *((),) * 4)
    error, hold = np.array(errors), np.array(holds)  # [C, H, A]
    return OpenLoop(
        len(error),
        float(np.nanmean(error)),
        float(np.nanmean(hold)),
        *(_means(values, axis) for axis in ((0, 2), (0, 1)) for values in (error, hold)),
    )


def _until_gap(truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Behind the first unknown row all are: another stretch of the bag has nothing to do with this chunk."""
    unknown = np.isnan(truth).any(axis=1)
    if unknown.any():
        truth[int(unknown.argmax()) :] = np.nan
    return truth


def _means(values: NDArray[np.float64], axis: tuple[int, ...]) -> tuple[float, ...]:
    known = ~np.isnan(values)
    counts = known.sum(axis=axis)
    sums = np.where(known, values, 0.0).sum(axis=axis)
    return tuple(float(total / count) if count else math.nan for total, count in zip(sums, counts, strict=True))
