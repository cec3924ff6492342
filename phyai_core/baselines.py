"""Ways to join chunks that real-time chunking is compared with, and that also serve policies without a flow.

Temporal ensembling averages what all chunks say of a tick (ACT, arXiv 2304.13705); a cross-fade moves from the old
chunk to the new one within a tick or two. Both average plans: between two ways round an obstacle lies the obstacle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import ActionChunk, FloatArray, InferenceRequest

MAX_BLEND_TICKS = 2


class TemporalEnsemble:
    """Wraps an inference: row i becomes the mean of every chunk of this epoch that has a row for tick base + i.

    Weights are exp(-decay * age), the oldest chunk having age 0 as in ACT. Combine it with an execution horizon of 1:
    then a new inference starts as soon as the last one has landed.
    """

    def __init__(self, infer: Callable[[InferenceRequest], ActionChunk], decay: float = 0.01) -> None:
        if not 0.0 <= decay < np.inf:
            raise ValueError(f"decay is {decay}; allowed is a finite number >= 0.")
        self._infer, self._decay = infer, decay
        self._chunks: deque[ActionChunk] = deque()

    def __call__(self, request: InferenceRequest) -> ActionChunk:
        """Raises what the wrapped inference raises."""
        chunk = self._infer(request)
        self._chunks.append(chunk)
        self._drop_outdated(chunk)
        return replace(chunk, actions=self._average(chunk))

    def _drop_outdated(self, newest: ActionChunk) -> None:
        horizon = len(newest.actions)
        kept = [c for c in self._chunks if c.epoch == newest.epoch and newest.base_tick - c.base_tick < horizon]
        self._chunks = deque(kept)

    def _average(self, newest: ActionChunk) -> FloatArray:
        total, weights = np.zeros(newest.actions.shape), np.zeros((len(newest.actions), 1))
        for age, chunk in enumerate(self._chunks):
            shift = newest.base_tick - chunk.base_tick
            rows, weight = chunk.actions[shift:], np.exp(-self._decay * age)
            total[: len(rows)] += weight * rows
            weights[: len(rows)] += weight
        return (total / weights).astype(np.float32)


def cross_fade(
    old_tail: FloatArray, actions: FloatArray, entry: int, ticks: int, columns: NDArray[np.bool_] | None = None
) -> FloatArray:
    """`actions` [H, A] whose rows entry .. entry + ticks - 1 are mixed with `old_tail` [V, A], the old rows still due.

    The share of the new chunk rises linearly: 1/2 for one tick, 1/3 and 2/3 for two. Dims that `columns` [A] leaves
    out switch at once: half a gripper command is no command.
    """
    count = max(0, min(ticks, len(old_tail), len(actions) - entry))
    share = np.arange(1, count + 1, dtype=np.float32)[:, None] / (ticks + 1)
    faded = actions.copy()
    mixed = (1.0 - share) * old_tail[:count] + share * actions[entry : entry + count]
    columns = np.ones(actions.shape[1], bool) if columns is None else columns
    faded[entry : entry + count] = np.where(columns, mixed, actions[entry : entry + count])
    return faded
