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
    """

    both: int
    only_recorded: int
    only_replayed: int
    equal: int
    largest: float
    first_s: float

    @property
    def exact(self) -> bool:
        return self.equal == self.both and not self.only_recorded and not self.only_replayed

    def __str__(self) -> str:
        if self.exact:
            return f"all {self.both} recorded commands come out the same, bit by bit"
        missing = f", {self.only_recorded} are missing and {self.only_replayed} are new"
        begin = f" from {self.first_s:.3f} s on" if not math.isnan(self.first_s) else ""
        return f"{self.equal} of {self.both} recorded commands come out the same{begin}{missing}"


def check_parity(log: ActionLog, run: RecordedRun) -> Parity:
    """Tick by tick, joints by name."""
    order = [run.names.index(name) for name in log.names]
    recorded = dict(zip(run.command_ticks.tolist(), run.command_rows[:, order].astype(np.float32), strict=True))
    replayed = {line.tick: line for line in log.ticks if line.row is not None}
    both = sorted(recorded.keys() & replayed.keys())
    differences = np.array([float(np.abs(recorded[tick] - replayed[tick].row).max()) for tick in both])
    wrong = [tick for tick, difference in zip(both, differences, strict=True) if difference > 0]
    only = [tick for tick in replayed if tick not in recorded]
    first = min([*wrong, *only], default=None)
    return Parity(
        len(both),
        len(recorded) - len(both),
        len(only),
        int((differences == 0).sum()),
        float(differences.max(initial=0.0)),
        math.nan if first is None else log.since_start_s(replayed[first].stamp_ns),
    )
