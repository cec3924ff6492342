"""How the clock that stamps an input stands to ours, from stamps and arrivals alone.

A message cannot arrive before it was stamped: the smallest arrival minus stamp is transport plus clock offset. Below
zero the foreign clock is ahead for certain; a steady slope of that smallest difference is drift of one against the
other. Offset and transport cannot be told apart with one-way messages, so the offset is a bound and called so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

BUCKET_NS = 1_000_000_000  # one smallest difference is kept per second
BUCKETS = 60
FEWEST_BUCKETS = 10  # for a slope


@dataclass(frozen=True)
class ClockState:
    """`offset_s`: smallest arrival minus stamp of the last minute. `drift`: its slope in s per s. NaN: not known yet.

    `steps_back`: how often a stamp was older than the one before.
    """

    offset_s: float = math.nan
    drift: float = math.nan
    steps_back: int = 0


class ClockOffset:
    """One per input; `note` stores two numbers in place. Not locked: a reader may see one message less."""

    def __init__(self) -> None:
        self._smallest_s = np.full(BUCKETS, np.nan)
        self._times_s = np.full(BUCKETS, np.nan)
        self._bucket, self._count, self._last_stamp_ns, self._steps_back = -1, 0, 0, 0
        self._origin_ns = 0

    def note(self, stamp_ns: int, arrival_stamp_ns: int) -> None:
        """A message stamped `stamp_ns` arrived at `arrival_stamp_ns` of our clock, both ROS time."""
        self._steps_back += stamp_ns < self._last_stamp_ns
        self._last_stamp_ns = stamp_ns
        difference_s = (arrival_stamp_ns - stamp_ns) * 1e-9
        bucket = arrival_stamp_ns // BUCKET_NS
        if bucket != self._bucket:
            self._origin_ns = self._origin_ns or arrival_stamp_ns
            self._bucket, self._count = bucket, self._count + 1
            self._smallest_s[self._place] = math.inf
        if difference_s < self._smallest_s[self._place]:
            self._smallest_s[self._place] = difference_s
            self._times_s[self._place] = (arrival_stamp_ns - self._origin_ns) * 1e-9

    @property
    def _place(self) -> int:
        return (self._count - 1) % BUCKETS

    def estimate(self) -> ClockState:
        held = min(self._count, BUCKETS)
        if held == 0:
            return ClockState()
        offset_s = float(np.min(self._smallest_s[:held]))
        return ClockState(offset_s, self._slope(held), self._steps_back)

    def _slope(self, held: int) -> float:
        """From the smallest difference of the older half to that of the newer one: delays only ever add to it."""
        if held < FEWEST_BUCKETS:
            return math.nan
        order = np.roll(np.arange(BUCKETS), -(self._place + 1))[-held:] if self._count > BUCKETS else np.arange(held)
        halves = np.array_split(order, 2)
        lows = [half[np.argmin(self._smallest_s[half])] for half in halves]
        span_s = self._times_s[lows[1]] - self._times_s[lows[0]]
        return float((self._smallest_s[lows[1]] - self._smallest_s[lows[0]]) / span_s) if span_s > 0 else math.nan
