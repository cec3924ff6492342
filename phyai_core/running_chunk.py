"""What executes now: a chunk, the row that comes next, and the rows emitted last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from phyai_core.baselines import cross_fade
from phyai_core.metrics import seam
from phyai_core.types import ActionChunk, FloatArray, Leftover


class RunningChunk:
    """`chunk` is None where nothing executes. Not locked."""

    def __init__(self) -> None:
        self.chunk: ActionChunk | None = None
        self.cursor = 0  # next row of the chunk
        self._last_rows: list[FloatArray] = []  # the last two emitted without a rest between them

    @property
    def left(self) -> int:
        """Rows not yet emitted."""
        return 0 if self.chunk is None else len(self.chunk.actions) - self.cursor

    def swap(self, chunk: ActionChunk, entry: int) -> None:
        """From now on rows of `chunk` are emitted, `entry` first."""
        self.chunk, self.cursor = chunk, entry

    def drop(self) -> None:
        """Nothing executes any more."""
        self.chunk, self.cursor = None, 0

    def emit(self) -> tuple[FloatArray, int]:
        """The next row [A] and its index."""
        index, self.cursor = self.cursor, self.cursor + 1
        row = self.chunk.actions[index]
        self._last_rows = [*self._last_rows[-1:], row]
        return row, index

    def skip(self, rows: int) -> int:
        """Rows that an output executed by itself count as emitted; how many of them the chunk still held."""
        skipped = min(rows, self.left)
        self.cursor += skipped
        return skipped

    def skip_all(self) -> None:
        """Leave out the rows that are left."""
        self.skip(self.left)

    def rest(self) -> None:
        """The robot comes to rest: no seam to the rows before."""
        self._last_rows = []

    def leftover(self, offset: int, delay: int) -> Leftover | None:
        """What a chunk launched now continues, from `offset` rows ahead on; None where no row is left there."""
        first = self.cursor + offset
        if self.chunk is None or first >= len(self.chunk.actions):
            return None
        return Leftover(self.chunk.latent[first:], self.chunk.actions[first:], delay, execution_horizon=first)

    def fade_into(self, chunk: ActionChunk, entry: int, ticks: int, blended: NDArray[np.bool_]) -> ActionChunk:
        """`chunk` with a cross-fade from the rows that are left; `blended` [A] says which actions fade."""
        if self.chunk is None or not ticks:
            return chunk
        faded = cross_fade(self.chunk.actions[self.cursor :], chunk.actions, entry, ticks, blended)
        return replace(chunk, actions=faded)

    def seam_to(self, row: FloatArray) -> float:
        """Largest absolute second difference over joints if `row` came next; NaN without two rows before it."""
        return seam(*self._last_rows, row) if len(self._last_rows) == 2 else float("nan")
