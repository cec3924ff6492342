"""Whether a replay of a recorded run commanded what the live node had commanded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from phyai_ros.replay.action_log import ActionLog
from phyai_ros.replay.recorded_run import RecordedRun


@dataclass(frozen=True)
class Parity:
    """Ticks with a command in both, in the recording only, in the replay only; `equal` of those in both are the same.

    `largest` is the largest difference of a joint, `first_s` the bag time of the first tick that differs (NaN: none).
    `traced`: ~/ticks was recorded; without it, ticks that the live node missed can only be guessed.
    """

    both: int
    only_recorded: int
    only_replayed: int
    equal: int
    largest: float
    first_s: float
    traced: bool

    @property
    def exact(self) -> bool:
        return self.equal == self.both and not self.only_recorded and not self.only_replayed

    def __str__(self) -> str:
        if self.exact:
            return f"all {self.both} recorded commands come out the same, bit by bit"
        missing = f", {self.only_recorded} are missing and {self.only_replayed} are new"
        begin = f" from {self.first_s:.3f} s on" if not math.isnan(self.first_s) else ""
        guessed = "" if self.traced else "; record ~/ticks too: it tells which ticks the node missed and what it saw"
        return f"{self.equal} of {self.both} recorded commands come out the same{begin}{missing}{guessed}"


def check_parity(log: ActionLog, run: RecordedRun) -> Parity:
    """By the stamps of the ticks, joints by name, up to the last tick that is known to have run."""
    order = [run.names.index(name) for name in log.names]
    recorded = dict(zip(run.command_ns.tolist(), run.command_rows[:, order].astype(np.float32), strict=True))
    replayed = {line.stamp_ns: line for line in log.ticks if line.row is not None and line.stamp_ns <= run.end_ns}
    both = sorted(recorded.keys() & replayed.keys())
    differences = np.array([float(np.abs(recorded[at_ns] - replayed[at_ns].row).max()) for at_ns in both])
    wrong = [at_ns for at_ns, difference in zip(both, differences, strict=True) if difference > 0]
    only = [at_ns for at_ns in replayed if at_ns not in recorded]
    first = min([*wrong, *only], default=None)
    return Parity(
        len(both),
        len(recorded) - len(both),
        len(only),
        int((differences == 0).sum()),
        float(differences.max(initial=0.0)),
        math.nan if first is None else log.since_start_s(first),
        bool(run.trace),
    )
