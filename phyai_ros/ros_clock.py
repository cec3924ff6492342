"""ROS time as a clock of the control loop, for use_sim_time: deadlines follow /clock instead of the machine."""

from __future__ import annotations

import threading
import time

from rclpy.clock import Clock, JumpThreshold
from rclpy.duration import Duration

EARLY_RETURN_S = 0.2  # a paused clock gives the loop a chance to stop this often (wall time)


class RosClock:
    """The `phyai_core.clock.Clock` protocol on an rclpy clock, with early returns from `sleep_until`.

    While /clock is paused no time passes: sleepers wait, nothing is late. Every update of /clock wakes them.
    Before the first /clock message the time is 0.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        every_update = JumpThreshold(
            min_forward=Duration(nanoseconds=1), min_backward=Duration(nanoseconds=-1), on_clock_change=True
        )
        self._handle = clock.create_jump_callback(every_update, post_callback=self._wake)

    def now_ns(self) -> int:
        """ROS time now, nanoseconds. It steps back when a bag starts over."""
        return self._clock.now().nanoseconds

    def sleep_until(self, deadline_ns: int) -> None:
        """Return when `deadline_ns` is reached, when time went back, or after 0.2 s of wall time in any case."""
        with self._changed:
            before_ns = self.now_ns()
            self._changed.wait_for(lambda: not before_ns <= self.now_ns() < deadline_ns, EARLY_RETURN_S)

    def close(self) -> None:
        """Stop listening to the clock."""
        self._handle.unregister()

    def _wake(self, _jump: object) -> None:
        with self._changed:
            self._changed.notify_all()


def to_stamp_ns(clock: Clock, deadline_ns: int) -> int:
    """A deadline of the control loop as ROS time: of `clock` itself under use_sim_time, else of the steady clock."""
    if clock.ros_time_is_active:
        return deadline_ns
    return clock.now().nanoseconds - (time.monotonic_ns() - deadline_ns)
