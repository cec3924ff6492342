"""Repeats what came to a live node from outside of the bag: services, its controllers, its own start and end.

~/ticks tells why each tick did not move the robot, and since when only newer inputs counted, which changes whenever the
node starts over. Whatever of that the bag's own messages do not explain is done here.
"""

from __future__ import annotations

from collections.abc import Collection

from phyai_core.executor import RtcExecutor
from phyai_core.types import Fault, Reason
from phyai_ros.mailbox import Mailbox
from phyai_ros.pipeline import Pipeline
from phyai_ros.replay.clockwork import LogicalClock
from phyai_ros.supervision import DISABLED, ESTOP
from phyai_ros.tick_trace import TracedTick

OUTSIDE = (Reason.PAUSED, Reason.NOT_OWNER, Reason.COLLISION, Reason.CONTROLLER)


class Follower:
    """Call `prepare` before each tick. `unheard` are reasons of switches whose topics are not in the bag."""

    def __init__(
        self,
        pipeline: Pipeline,
        executor: RtcExecutor,
        mailbox: Mailbox,
        clock: LogicalClock,
        unheard: Collection[Reason] = (),
    ) -> None:
        self._pipeline, self._executor, self._mailbox, self._clock = pipeline, executor, mailbox, clock
        self._outside = {reason.value: reason for reason in (*OUTSIDE, *unheard)}
        self._tick, self._standing, self._closed = -1, False, False
        self._launches: int | None = None  # after the tick before

    def prepare(self, tick: TracedTick) -> None:
        """Bring the pipeline where the live one was when this tick began; nothing for ticks that are not recorded."""
        now_ns = self._clock.ns
        if tick.reason:
            self._clock.ns = tick.newer_than_ns or now_ns
            if tick.tick <= self._tick:
                self._pipeline.begin()
                self._closed = False
            self._stand(tick)
            self._number_launches(tick)
            if tick.newer_than_ns and tick.newer_than_ns != self._mailbox.newer_than_ns:
                self._pipeline.reset(Reason.RESET, "the live node started over")
        self._launches = tick.launches if tick.reason else None
        self._tick, self._clock.ns = tick.tick, max(now_ns, tick.ran_ns)

    def _number_launches(self, tick: TracedTick) -> None:
        """As live, where the recording begins in the middle of a run or the replay launched otherwise: noise is drawn
        by this number."""
        if self._launches is not None:
            self._executor.launches = self._launches
        elif tick.launches > 1:
            self._executor.launches = tick.launches

    def _stand(self, tick: TracedTick) -> None:
        reason = self._outside.get(tick.reason)
        if (reason is not None) != self._standing:
            self._standing = reason is not None
            self._pipeline.own(Fault(reason, f"{tick.reason}, as the recording tells") if reason is not None else None)
        if tick.reason == Reason.INACTIVE.value and not self._closed:
            self._pipeline.close()
            self._closed = True
        fault = self._pipeline.supervision.fault(self._clock.ns)
        if fault is ESTOP and tick.reason != ESTOP.reason.value:
            self._pipeline.clear_estop()
        if fault is DISABLED and tick.reason not in self._outside and tick.reason != DISABLED.reason.value:
            self._pipeline.enable(True)  # as before the recording began
