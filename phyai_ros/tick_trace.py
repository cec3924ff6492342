"""What the control loop did, tick by tick, for recordings: ~/ticks tells it a few times a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

KEPT = 4096  # ticks; only where nobody takes them for minutes are any lost


@dataclass(frozen=True)
class TracedTick:
    """One tick that ran. Times are ROS time in nanoseconds; `late_ns`: when it looked at its inputs minus its deadline.

    `launches` counts inferences up to this tick. `newer_than_ns` (as the tick began) and `newest_ns` {topic: stamp} are
    those of Mailbox.
    """

    tick: int
    deadline_ns: int
    late_ns: int = 0
    reason: str = ""
    launches: int = 0
    newer_than_ns: int = 0
    newest_ns: Mapping[str, int] = field(default_factory=dict)
    sub_ticks: int = 0  # publications between this tick and the next one

    @property
    def ran_ns(self) -> int:
        return self.deadline_ns + self.late_ns


class TickTrace:
    """`note` and `note_sub_tick` belong to the control thread, `take` to one other."""

    def __init__(self) -> None:
        self._done: deque[TracedTick] = deque(maxlen=KEPT)
        self._open: TracedTick | None = None  # its sub-ticks are still to come
        self._sub_ticks = 0

    def note(self, tick: TracedTick) -> None:
        """The tick that has just run; the one before is complete now."""
        self.finish()
        self._open = tick

    def note_sub_tick(self) -> None:
        self._sub_ticks += 1

    def finish(self) -> None:
        """The loop has ended: the last tick is complete too."""
        if self._open is not None:
            self._done.append(replace(self._open, sub_ticks=self._sub_ticks))
        self._open, self._sub_ticks = None, 0

    def take(self) -> list[TracedTick]:
        """The complete ticks since the last call, oldest first."""
        return [self._done.popleft() for _ in range(len(self._done))]
