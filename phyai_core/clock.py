"""Time sources for the control loop: the machine's steady clock, and a fake one that tests move by hand."""

from __future__ import annotations

import threading
import time
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """A monotonic time source in integer nanoseconds."""

    def now_ns(self) -> int:
        """Time now, nanoseconds since an arbitrary start; never decreases."""

    def sleep_until(self, deadline_ns: int) -> None:
        """Return at or after `deadline_ns`; at once when it has passed."""


class SteadyClock:
    """CLOCK_MONOTONIC: unaffected by changes of the wall clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, deadline_ns: int) -> None:
        # A loop, because a sleep may end early by rounding.
        while (remaining_ns := deadline_ns - time.monotonic_ns()) > 0:
            time.sleep(remaining_ns / NS_PER_S)


class FakeClock:
    """A clock that moves only when told to; safe to use from several threads.

    With `blocking=False` a sleeper itself moves time to its deadline (single-threaded tests).
    With `blocking=True` a sleeper waits until another thread calls `advance` far enough.
    """

    def __init__(self, start_ns: int = 0, blocking: bool = False) -> None:
        self._now_ns = start_ns
        self._blocking = blocking
        self._deadlines: list[int] = []
        self._changed = threading.Condition()

    def now_ns(self) -> int:
        with self._changed:
            return self._now_ns

    def advance(self, step_ns: int) -> None:
        """Move time forward by `step_ns` >= 0 and wake every sleeper whose deadline is reached."""
        if step_ns < 0:
            raise ValueError(f"step_ns {step_ns}: a steady clock never runs backwards; use a value >= 0.")
        with self._changed:
            self._now_ns += step_ns
            self._changed.notify_all()

    def sleep_until(self, deadline_ns: int) -> None:
        with self._changed:
            if not self._blocking:
                self._now_ns = max(self._now_ns, deadline_ns)
                return
            self._deadlines.append(deadline_ns)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._now_ns >= deadline_ns)
            self._deadlines.remove(deadline_ns)

    def wait_for_sleeper(self, timeout_s: float) -> bool:
        """Wait (real time) until some thread sleeps towards a deadline that is still ahead; False on time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: any(d > self._now_ns for d in self._deadlines), timeout_s)
