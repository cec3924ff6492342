"""Gives recorded messages to a replay at the ticks at which the live node saw them.

The recorder and the node are two processes: which of two things came first can differ by milliseconds between them. The
node's chunks say which messages it had used, and since when they were there.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

from phyai_ros.replay.bag import BagMessage
from phyai_ros.replay.bag_types import stamp_of
from phyai_ros.replay.clockwork import NS_PER_S
from phyai_ros.replay.recorded_run import RecordedChunk, RecordedRun, RecordedTicks
from phyai_ros.replay.topics import InputTopics

REACH_NS = NS_PER_S // 2  # no message is moved further
NEAR_TICKS = 5


class RecordedOrder:
    """Moves the log times of inputs so that a replay that ticks by `ticks` sees what the node saw."""

    def __init__(self, run: RecordedRun, ticks: RecordedTicks, inputs: InputTopics) -> None:
        self._ticks, self._inputs = ticks, inputs
        self._uses: dict[str, list[tuple[int, int, int]]] = {}  # {topic: (stamp, not before, not after), by stamp}
        for chunk in run.chunks:
            for use in chunk.uses:
                window = (ticks.due_ns(use.arrival_tick) + 1, ticks.due_ns(use.arrival_tick + 1))
                self._uses.setdefault(use.topic, []).append((use.stamp_ns, *window))
        self._launches = {use.topic: [] for chunk in run.chunks for use in chunk.uses}
        for chunk in run.chunks:
            for use in chunk.uses:
                self._launches[use.topic].append((use.stamp_ns, ticks.due_ns(chunk.base_tick) + 1))
        self._last_ticks = _ends_of_runs(run)
        self._first_chunks = _first_of_epochs(run.chunks)

    def arrange(self, messages: Iterable[BagMessage]) -> Iterator[BagMessage]:
        """The same messages with the moved log times, in their order."""
        waiting: list[tuple[int, int, BagMessage]] = []
        for number, message in enumerate(messages):
            moved_ns = min(max(self._move(message), message.log_ns - REACH_NS), message.log_ns + REACH_NS)
            heapq.heappush(waiting, (moved_ns, number, replace(message, log_ns=moved_ns)))
            while waiting and waiting[0][0] < message.log_ns - REACH_NS:
                yield heapq.heappop(waiting)[2]
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _move(self, message: BagMessage) -> int:
        if message.topic == self._inputs.enable:
            return self._move_enable(message)
        uses = self._uses.get(message.topic)
        return message.log_ns if uses is None else self._move_input(message, uses)

    def _move_input(self, message: BagMessage, uses: list[tuple[int, int, int]]) -> int:
        """Within the window in which it came; not before a launch that did without it; not after a newer one."""
        stamp_ns, moved_ns = stamp_of(message.msg), message.log_ns
        launches = self._launches[message.topic]
        place = bisect_right(launches, (stamp_ns - 1, 1 << 63))
        if place:
            moved_ns = max(moved_ns, launches[place - 1][1])
        later = bisect_right(uses, (stamp_ns - 1, 1 << 63, 0))
        if later < len(uses):
            used_ns, not_before_ns, not_after_ns = uses[later]
            moved_ns = min(moved_ns, not_after_ns)
            if used_ns == stamp_ns:
                moved_ns = max(moved_ns, not_before_ns)
        return moved_ns

    def _move_enable(self, message: BagMessage) -> int:
        """Off: between the last command and the tick after it. On: before the pictures that the first launch used."""
        if message.msg.data:
            first = next((chunk for chunk in self._first_chunks if self._launch_ns(chunk) > message.log_ns), None)
            oldest_ns = min((use.stamp_ns for use in first.uses), default=message.log_ns) if first else message.log_ns
            return min(message.log_ns, oldest_ns - 1)
        near_ns = NEAR_TICKS * self._ticks.period_ns
        ends = [tick for tick in self._last_ticks if abs(self._ticks.due_ns(tick) - message.log_ns) < near_ns]
        if not ends:
            return message.log_ns
        return min(max(message.log_ns, self._ticks.due_ns(ends[-1]) + 1), self._ticks.due_ns(ends[-1] + 1))

    def _launch_ns(self, chunk: RecordedChunk) -> int:
        return self._ticks.due_ns(chunk.base_tick)


def _ends_of_runs(run: RecordedRun) -> list[int]:
    """The ticks with a command whose next tick has none."""
    ticks = run.command_ticks.tolist()
    return [tick for tick, after in zip(ticks, [*ticks[1:], None], strict=True) if after != tick + 1]


def _first_of_epochs(chunks: Iterable[RecordedChunk]) -> list[RecordedChunk]:
    first: dict[int, RecordedChunk] = {}
    for chunk in chunks:
        first.setdefault(chunk.epoch, chunk)
    return list(first.values())
