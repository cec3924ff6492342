"""The control loop: its own thread, absolute deadlines, and ticks counted by time.

Tick k has the deadline start + k * period. A wake-up later than a whole period skips ahead instead of running a burst:
the ticks in between are reported as missed, and k goes on counting time. Nothing that a callback raises ends the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from phyai_core.clock import NS_PER_S, Clock
from phyai_core.timing import Ring

OnTick = Callable[[int, int, int, int], None]
OnSubTick = Callable[[int, float, int], None]

TICK_ERROR_WINDOW_S = 10.0
JOIN_TIMEOUT_S = 2.0


class ControlLoop:
    """Calls `on_tick(k, missed, deadline_ns, wake_ns)` once per period, in its own thread between `start` and `stop`.

    `on_sub_tick(k, fraction, deadline_ns)` is called `sub_ticks` - 1 times between two ticks, `fraction` of a period
    after tick k; a late one is dropped. `on_error(error)` hears what a callback raised, `prepare()` runs first in the
    thread (priority, affinity). Times are those of `clock`, which may return early from a sleep (a paused ROS clock).

    `leap_s`, for clocks that can be set: a wake-up so much too late, or any step back, is a jump of the clock, not a
    stall. It is given to `on_jump(delta_ns)`, the deadlines start afresh, and no tick counts as missed.
    """

    def __init__(
        self,
        period_s: float,
        on_tick: OnTick,
        clock: Clock,
        *,
        sub_ticks: int = 1,
        on_sub_tick: OnSubTick | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_jump: Callable[[int], None] | None = None,
        prepare: Callable[[], None] | None = None,
        leap_s: float | None = None,
    ) -> None:
        if not period_s > 0 or sub_ticks < 1:
            raise ValueError(f"period_s {period_s}, sub_ticks {sub_ticks}: both must be positive.")
        self._period_ns = round(period_s * NS_PER_S)
        self._sub_ticks = sub_ticks if on_sub_tick is not None else 1
        self._on_tick, self._on_sub_tick = on_tick, on_sub_tick
        self._on_error, self._on_jump, self._prepare = on_error, on_jump, prepare
        self._clock = clock
        self._leap_ns = None if leap_s is None else round(leap_s * NS_PER_S)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_ns: int | None = None
        self._tick, self._sub = 0, 0
        self._last_wake_ns = 0
        self.missed_ticks = 0
        self.errors = 0  # exceptions caught from callbacks
        self.tick_errors_s = Ring(max(1, round(TICK_ERROR_WINDOW_S / period_s)))  # wake minus deadline

    def start(self) -> None:
        """Begin ticking; the first deadline is now. A loop runs once: make a new one to start again."""
        if self._thread is not None:
            raise RuntimeError("the control loop was started before; make a new one")
        self._thread = threading.Thread(target=self._run, name="control_loop", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """No callback begins after this returns True; False when one still blocks the thread after 2 s."""
        self._stopping.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(JOIN_TIMEOUT_S)
        return not thread.is_alive()

    def advance(self) -> None:
        """Sleep until the next deadline and run what is due then. The thread's body; tests call it directly."""
        if self._start_ns is None:
            self._start_ns = self._last_wake_ns = self._clock.now_ns()
        deadline_ns = self._deadline_ns(self._tick, self._sub)
        self._clock.sleep_until(deadline_ns)
        now_ns = self._clock.now_ns()
        if self._stopping.is_set():
            return
        if self._jumped(deadline_ns, now_ns):
            deadline_ns = now_ns
        self._last_wake_ns = now_ns
        if now_ns < deadline_ns:
            return
        if self._sub == 0:
            self._run_tick(deadline_ns, now_ns)
        elif now_ns < self._deadline_ns(self._tick, self._sub + 1):
            self._guard(self._on_sub_tick, self._tick, self._sub / self._sub_ticks, deadline_ns)
        self._tick, self._sub = (self._tick, self._sub + 1) if self._sub + 1 < self._sub_ticks else (self._tick + 1, 0)

    def _run(self) -> None:
        if self._prepare is not None:
            self._guard(self._prepare)
        while not self._stopping.is_set():
            self.advance()

    def _run_tick(self, deadline_ns: int, now_ns: int) -> None:
        self.tick_errors_s.push((now_ns - deadline_ns) / NS_PER_S)
        missed = (now_ns - deadline_ns) // self._period_ns
        self._tick += missed
        self.missed_ticks += missed
        self._guard(self._on_tick, self._tick, missed, deadline_ns + missed * self._period_ns, now_ns)

    def _jumped(self, deadline_ns: int, now_ns: int) -> bool:
        """Whether the clock was set since the last wake-up; if so, tick again from now on, under the next number."""
        back = now_ns < self._last_wake_ns
        ahead = self._leap_ns is not None and now_ns - deadline_ns > self._leap_ns
        if not back and not ahead:
            return False
        if self._sub > 0:
            self._tick, self._sub = self._tick + 1, 0
        self._start_ns = now_ns - self._tick * self._period_ns
        if self._on_jump is not None:
            self._guard(self._on_jump, now_ns - self._last_wake_ns)
        return True

    def _deadline_ns(self, tick: int, sub: int) -> int:
        return self._start_ns + tick * self._period_ns + sub * self._period_ns // self._sub_ticks

    def _guard(self, callback: Callable[..., None], *args: object) -> None:
        """The robot depends on the next tick, so no error of this one may end the loop."""
        try:
            callback(*args)
        except Exception as error:
            self.errors += 1
            if self._on_error is not None:
                with suppress(Exception):
                    self._on_error(error)
