"""Gives recorded messages to a replay at the ticks at which the live node saw them.

The recorder and the node are two processes: which of two things came first can differ between them, by milliseconds or
by as long as one of them stood still. ~/ticks tells the newest message of each input at each tick. A recording without
it has the node's chunks, which say what each launch had used, and since when it was there.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from phyai_ros.replay.bag import BagMessage
from phyai_ros.replay.bag_types import stamp_of
from phyai_ros.replay.clockwork import NS_PER_S
from phyai_ros.replay.recorded_run import RecordedRun
from phyai_ros.replay.recorded_ticks import RecordedTicks
from phyai_ros.replay.topics import InputTopics

BACK_NS = NS_PER_S  # no message is moved further back
SWITCH_REACH_NS = NS_PER_S // 2  # so far off a switch may have been recorded
LATEST = 1 << 63


@dataclass(frozen=True, order=True)
class Seen:
    """The message with this stamp was there between two instants, nanoseconds."""

    stamp_ns: int
    earliest_ns: int
    latest_ns: int


class RecordedOrder:
    """Moves the log times of inputs so that a replay that ticks by `ticks` sees what the node saw."""

    def __init__(self, run: RecordedRun, ticks: RecordedTicks, inputs: InputTopics) -> None:
        self._ticks, self._inputs = ticks, inputs
        self._seen: dict[str, list[Seen]] = defaultdict(list)
        self._without: dict[str, list[tuple[int, int]]] = defaultdict(list)  # (newest stamp, when a tick ran with it)
        self._switches: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # {on or off: (earliest, latest)}
        self._switched: dict[str, tuple[bool, int]] = {}  # {topic: (value, when)} of the last message
        if run.trace:
            self._note_ticks(run)
        else:
            self._note_launches(run)
        for noted in (*self._seen.values(), *self._without.values()):
            noted.sort()

    def _note_ticks(self, run: RecordedRun) -> None:
        before_ns, newest = 0, {}
        for tick in run.trace:
            for topic, stamp_ns in tick.newest_ns.items():
                if newest.get(topic) != stamp_ns:
                    self._seen[topic].append(Seen(stamp_ns, before_ns, tick.ran_ns))
                self._without[topic].append((stamp_ns, tick.ran_ns + 1))
            before_ns, newest = tick.ran_ns + 1, tick.newest_ns
        starts_ns = sorted({tick.newer_than_ns for tick in run.trace if tick.newer_than_ns})
        self._switches = {on: [(start_ns, start_ns) for start_ns in starts_ns] for on in (True, False)}

    def _note_launches(self, run: RecordedRun) -> None:
        """And when it was switched: off before the tick after the last command, on before what the first launch saw."""
        period_ns, epoch = self._ticks.period_ns, -1
        for chunk in run.chunks:
            launch_ns = chunk.adopt_ns - (chunk.adopt_tick - chunk.base_tick) * period_ns
            for use in chunk.uses:
                arrival_ns = launch_ns - (chunk.base_tick - use.arrival_tick) * period_ns
                there = self._ticks.list[self._ticks.last_until(arrival_ns + period_ns // 2)]
                window = (there.ran_ns + 1, self._ticks.after(there).ran_ns)
                window = window if use.arrival_tick < chunk.base_tick else (0, launch_ns)  # before the very first tick
                self._seen[use.topic].append(Seen(use.stamp_ns, *window))
                self._without[use.topic].append((use.stamp_ns, launch_ns + 1))
            if chunk.epoch != epoch:
                on_ns = min((use.stamp_ns for use in chunk.uses), default=launch_ns) - 1
                self._switches[True].append((on_ns, on_ns))
            epoch = chunk.epoch
        commanded = set(run.command_ns.tolist())
        for tick in self._ticks.list:
            after = self._ticks.after(tick)
            if tick.deadline_ns in commanded and after.deadline_ns not in commanded:
                self._switches[False].append((tick.ran_ns + 1, after.ran_ns))

    def arrange(self, messages: Iterable[BagMessage]) -> Iterator[BagMessage]:
        """The same messages with the moved log times, in their order."""
        waiting: list[tuple[int, int, BagMessage]] = []
        for number, message in enumerate(messages):
            moved_ns = max(self._move(message), message.log_ns - BACK_NS)
            heapq.heappush(waiting, (moved_ns, number, replace(message, log_ns=moved_ns)))
            while waiting and waiting[0][0] < message.log_ns - BACK_NS:
                yield heapq.heappop(waiting)[2]
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _move(self, message: BagMessage) -> int:
        if message.topic in (self._inputs.enable, self._inputs.estop):
            return self._move_switch(message)
        return self._move_input(message) if message.topic in self._seen else message.log_ns

    def _move_input(self, message: BagMessage) -> int:
        """Within the window in which it came; not before a tick that did without it; not after a newer one."""
        stamp_ns, moved_ns = stamp_of(message.msg), message.log_ns
        without, seen = self._without[message.topic], self._seen[message.topic]
        place = bisect_right(without, (stamp_ns - 1, LATEST))
        if place:
            moved_ns = max(moved_ns, without[place - 1][1])
        later = bisect_right(seen, Seen(stamp_ns - 1, LATEST, LATEST))
        if later < len(seen):
            moved_ns = min(moved_ns, seen[later].latest_ns)
            if seen[later].stamp_ns == stamp_ns:
                moved_ns = max(moved_ns, seen[later].earliest_ns)
        return moved_ns

    def _move_switch(self, message: BagMessage) -> int:
        """A switch that changes something makes the node start over, at an instant that is known."""
        value, moved_ns = bool(message.msg.data), message.log_ns
        before, before_ns = self._switched.get(message.topic, (False, 0))
        if value != before:
            fitting = [min(max(message.log_ns, first), last) for first, last in self._switches[value]]
            nearest_ns = min(fitting, key=lambda at_ns: abs(at_ns - message.log_ns), default=LATEST)
            moved_ns = nearest_ns if abs(nearest_ns - message.log_ns) < SWITCH_REACH_NS else moved_ns
        moved_ns = max(moved_ns, before_ns)
        self._switched[message.topic] = (value, moved_ns)
        return moved_ns
