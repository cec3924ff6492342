"""What the robot would have been told: one line per tick, and every chunk that was adopted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phyai_core.timing import ChunkTiming
from phyai_core.types import Action, ActionChunk, Command, FloatArray, Reason


@dataclass(frozen=True)
class TickLine:
    """One tick. `row` [A] is set iff the action is RUN and the output took it."""

    tick: int
    stamp_ns: int
    action: Action
    reason: Reason
    text: str
    epoch: int
    seq: int  # of the chunk that gave the row; -1 without a row
    index: int
    row: FloatArray | None


@dataclass(frozen=True)
class ChunkLine:
    """One adopted chunk. `stamp_ns` is the tick that adopted it."""

    command: Command
    stamp_ns: int
    timing: ChunkTiming

    @property
    def chunk(self) -> ActionChunk:
        return self.command.chunk

    @property
    def launch_ns(self) -> int:
        return self.command.adoption.request.launch_ns


@dataclass
class ActionLog:
    """The result of a replay. Names in action order [A]; `dt_s` is the control period."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    dt_s: float
    start_ns: int  # of the bag
    ticks: list[TickLine] = field(default_factory=list)
    chunks: list[ChunkLine] = field(default_factory=list)

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Stamps [T] and rows [T, A] of the ticks that had one."""
        run = [line for line in self.ticks if line.row is not None]
        stamps = np.array([line.stamp_ns for line in run], np.int64)
        return stamps, np.array([line.row for line in run], np.float64).reshape(len(run), len(self.names))

    def since_start_s(self, stamp_ns: int) -> float:
        """Bag time of a stamp."""
        return (stamp_ns - self.start_ns) * 1e-9

    def stretches(self) -> list[tuple[TickLine, int]]:
        """Runs of ticks that did the same for the same reason: the first of each, and how many there are."""
        found: list[tuple[TickLine, int]] = []
        for line in self.ticks:
            if found and (found[-1][0].action, found[-1][0].reason) == (line.action, line.reason):
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((line, 1))
        return found

    def write(self, path: Path) -> None:
        """As CSV. Rows are printed with nine digits, which is all that 32-bit floats hold."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.write(",".join(["tick", "time_s", "action", "reason", "epoch", "seq", "row", *self.names]) + "\n")
            for line in self.ticks:
                file.write(",".join(self._cells(line)) + "\n")

    def _cells(self, line: TickLine) -> Sequence[str]:
        values = [""] * len(self.names) if line.row is None else [f"{value:.9g}" for value in line.row]
        place = ("", "") if line.row is None else (str(line.seq), str(line.index))
        time_s = f"{self.since_start_s(line.stamp_ns):.6f}"
        return [str(line.tick), time_s, line.action.value, line.reason.value, str(line.epoch), *place, *values]
