"""The ticks that a live control loop really ran, in their order, with what each of them saw.

~/ticks tells them. A recording without it has the commands, which tell the ticks that moved the robot; the others are
concluded from what was launched when.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from phyai_core.types import InferenceRequest
from phyai_ros.replay.bag_types import NS_PER_S
from phyai_ros.replay.clockwork import ALL, UniformTicks
from phyai_ros.replay.latency import Latency
from phyai_ros.replay.recorded_run import RecordedChunk, RecordedRun
from phyai_ros.tick_trace import TracedTick

LONGEST_NS = 10 * NS_PER_S  # an inference that took longer counts as hung


class RecordedTicks(UniformTicks):
    """Every recorded tick at its true instant; before the first and after the last one a loop that is never late."""

    def __init__(self, run: RecordedRun, start_ns: int) -> None:
        super().__init__(start_ns, round(run.dt_s * NS_PER_S))
        known = {tick.deadline_ns: tick for tick in _commanded(run)} | {tick.deadline_ns: tick for tick in run.trace}
        ticks = sorted(known.values(), key=lambda tick: tick.ran_ns)
        if not run.trace:
            ticks = _fill(ticks, _unused_ticks(run), self.period_ns)
        early = range(min(ticks[0].tick, (ticks[0].ran_ns - start_ns) // self.period_ns), 0, -1)
        self.list = [*(_shifted(ticks[0], -back, self.period_ns) for back in early), *ticks]
        self._runs_ns = [tick.ran_ns for tick in self.list]
        self._deadlines_ns = [tick.deadline_ns for tick in self.list]

    def first(self) -> TracedTick:
        return self.list[0]

    def after(self, tick: TracedTick) -> TracedTick:
        place = bisect_right(self._runs_ns, tick.ran_ns)
        return self.list[place] if place < len(self.list) else super().after(tick)

    def window_of(self, deadline_ns: int) -> tuple[int, int]:
        """(after the tick before ran, until the tick with this deadline ran), nanoseconds."""
        place = min(bisect_left(self._deadlines_ns, deadline_ns), len(self.list) - 1)
        return (self._runs_ns[place - 1] + 1 if place else 0), self._runs_ns[place]

    def next_launch(self, launch_ns: int) -> TracedTick | None:
        """The tick of the launch that followed the one at `launch_ns`; None where the recording does not tell."""
        place = self.last_until(launch_ns)
        before = self.list[place].launches
        return next((tick for tick in self.list[place + 1 :] if tick.launches > before > 0), None)

    def last_until(self, at_ns: int) -> int:
        """The place in `list` of the last tick that had run by then; 0 where there is none."""
        return max(0, bisect_right(self._runs_ns, at_ns) - 1)


def _commanded(run: RecordedRun) -> Iterator[TracedTick]:
    """A tick that launched with an input stamped after its deadline ran that late at least."""
    newest_ns = {chunk.base_tick: max((use.stamp_ns for use in chunk.uses), default=0) for chunk in run.chunks}
    for tick, stamp_ns in zip(run.command_ticks.tolist(), run.command_ns.tolist(), strict=True):
        late_ns = newest_ns.get(tick, 0) - stamp_ns
        yield TracedTick(tick, stamp_ns, late_ns if 0 < late_ns < run.dt_s * NS_PER_S else 0, sub_ticks=ALL)


def _shifted(tick: TracedTick, by: int, period_ns: int) -> TracedTick:
    return TracedTick(tick.tick + by, tick.deadline_ns + by * period_ns, sub_ticks=ALL)


def _fill(known: Sequence[TracedTick], unused: set[int], period_ns: int) -> list[TracedTick]:
    """Ticks without a command lie between those with one, unless they were missed."""
    filled = [known[0]]
    for tick in known[1:]:
        between = range(filled[-1].tick + 1, tick.tick)
        filled += [_shifted(tick, number - tick.tick, period_ns) for number in between if number not in unused]
        filled.append(tick)
    return filled


def _unused_ticks(run: RecordedRun) -> set[int]:
    """Ticks that were missed, or might as well have been."""
    adopted = [chunk.adopt_tick for chunk in run.chunks]
    unused: set[int] = set()
    for tick, after in zip(run.command_ticks[:-1].tolist(), run.command_ticks[1:].tolist(), strict=True):
        before, there = (run.chunks[max(0, bisect_right(adopted, at) - 1)] for at in (tick, after))
        if after - tick > 1 and _goes_on(before, there, tick, after):
            unused.update(range(tick + 1, after))
    for before, chunk in zip([None, *run.chunks], run.chunks, strict=False):
        if before is None or before.epoch != chunk.epoch:  # it had all inputs, and yet it was launched later
            there = max((use.arrival_tick for use in chunk.uses), default=chunk.base_tick) + 1
            unused.update(range(there, chunk.base_tick))
    return unused


def _goes_on(before: RecordedChunk, there: RecordedChunk, tick: int, after: int) -> bool:
    """Whether rows were left for the tick after `tick`, so that only a missed tick can have no command."""
    rows_left = before.rows - before.entry_row - (tick - before.adopt_tick) > 1
    waited = there.adopt_tick == after and there.entry_row == 0
    return before.epoch == there.epoch and rows_left and not waited


def recorded_latency(run: RecordedRun, ticks: RecordedTicks) -> Latency:
    """Each inference is ready for the tick that adopted it live; one that was never adopted, for the next launch."""
    usual_s = float(np.median(run.latencies_s())) if run.latencies_s() else run.dt_s
    by_base = defaultdict(list)  # ticks are numbered anew with every activation
    for chunk in run.chunks:
        by_base[chunk.base_tick].append(chunk)

    def latency(request: InferenceRequest, measured_s: float) -> float:
        fitting = [c for c in by_base[request.base_tick] if abs(c.adopt_ns - request.launch_ns) < LONGEST_NS]
        chunk = min(fitting, key=lambda c: abs(c.adopt_ns - request.launch_ns), default=None)
        after = ticks.next_launch(request.launch_ns) if chunk is None else None
        if chunk is None and after is None:
            return usual_s
        seconds = usual_s if chunk is None or math.isnan(chunk.latency_s) else chunk.latency_s
        earliest_ns, latest_ns = ticks.window_of(chunk.adopt_ns if chunk is not None else after.deadline_ns)
        ready_ns = request.launch_ns + round(seconds * NS_PER_S)
        return (min(max(ready_ns, earliest_ns), latest_ns) - request.launch_ns) / NS_PER_S

    return latency
