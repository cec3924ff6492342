"""The control loop keeps time by itself.

Guards against: bursts of late ticks after a stall, drifting deadlines, one error that ends the loop, a loop that cannot
be stopped, and a ROS clock that is paused or starts over.
"""

from __future__ import annotations

import threading

import pytest
from rclpy.clock import ROSClock
from rclpy.time import Time

from phyai_core.clock import FakeClock, SteadyClock
from phyai_ros.control_loop import ControlLoop
from phyai_ros.ros_clock import RosClock

MS = 1_000_000
START = 7_000 * MS


class Log:
    """A loop of 40 ms on a clock that jumps to every deadline; `during` maps a tick to what happens in it."""

    def __init__(self, sub_ticks=1, during=None, clock=None, **options):
        self.clock = clock or FakeClock(START)
        self.ticks, self.subs, self.errors, self.jumps = [], [], [], []
        self._during = during or {}
        self.loop = ControlLoop(
            0.04,
            self._on_tick,
            self.clock,
            sub_ticks=sub_ticks,
            on_sub_tick=self._on_sub_tick,
            on_error=self.errors.append,
            on_jump=self.jumps.append,
            **options,
        )

    def _on_tick(self, k, missed, deadline_ns, wake_ns):
        self.ticks.append((k, missed, (deadline_ns - START) // MS, (wake_ns - START) // MS))
        self._during.get(k, lambda log: None)(self)

    def _on_sub_tick(self, k, fraction, deadline_ns):
        self.subs.append((k, fraction, (deadline_ns - START) // MS))

    def advance(self, times):
        for _ in range(times):
            self.loop.advance()
        return self


def test_deadlines_are_absolute_and_the_first_is_now():
    log = Log(during={1: lambda log: log.clock.advance(15 * MS)}).advance(4)
    assert log.ticks == [(0, 0, 0, 0), (1, 0, 40, 40), (2, 0, 80, 80), (3, 0, 120, 120)]


def test_a_stall_is_counted_and_never_caught_up_in_a_burst():
    log = Log(during={1: lambda log: log.clock.advance(130 * MS)}).advance(4)
    assert log.ticks == [(0, 0, 0, 0), (1, 0, 40, 40), (4, 2, 160, 170), (5, 0, 200, 200)]
    assert log.loop.missed_ticks == 2 and log.errors == []
    assert log.loop.tick_errors_s.values().max() == pytest.approx(0.09)


def test_sub_ticks_divide_the_period_and_late_ones_are_dropped():
    log = Log(sub_ticks=4, during={1: lambda log: log.clock.advance(25 * MS)}).advance(12)
    assert log.subs[:3] == [(0, 0.25, 10), (0, 0.5, 20), (0, 0.75, 30)]
    assert [sub for sub in log.subs if sub[0] == 1] == [(1, 0.5, 60), (1, 0.75, 70)]
    assert [tick[0] for tick in log.ticks] == [0, 1, 2]


def test_an_error_in_a_tick_is_reported_and_the_loop_goes_on():
    def fail(_):
        raise RuntimeError("broken tick")

    log = Log(during={1: fail}).advance(4)
    assert [str(error) for error in log.errors] == ["broken tick"]
    assert [tick[0] for tick in log.ticks] == [0, 1, 2, 3]
    assert log.loop.errors == 1


def test_even_an_error_handler_that_fails_does_not_end_the_loop():
    clock = FakeClock()
    loop = ControlLoop(0.04, lambda *_: 1 / 0, clock, on_error=lambda error: 1 / 0)
    for _ in range(3):
        loop.advance()
    assert loop.errors == 3


def test_stop_ends_the_thread_and_the_callbacks():
    ticked, prepared = threading.Event(), threading.Event()
    loop = ControlLoop(0.002, lambda *_: ticked.set(), SteadyClock(), prepare=prepared.set)
    loop.start()
    assert ticked.wait(5.0) and prepared.is_set()
    assert loop.stop()
    ticked.clear()
    assert not ticked.wait(0.02)
    with pytest.raises(RuntimeError, match="new one"):
        loop.start()


def test_stop_from_within_a_tick_does_not_wait_for_itself():
    stopped = threading.Event()
    loop = ControlLoop(0.002, lambda *_: loop.stop() and stopped.set(), SteadyClock())
    loop.start()
    assert stopped.wait(5.0)
    assert loop.stop()


def test_stop_tells_when_a_callback_does_not_return(monkeypatch):
    monkeypatch.setattr("phyai_ros.control_loop.JOIN_TIMEOUT_S", 0.05)
    entered, release = threading.Event(), threading.Event()
    loop = ControlLoop(0.002, lambda *_: (entered.set(), release.wait(10.0)), SteadyClock())
    loop.start()
    assert entered.wait(5.0)
    assert not loop.stop()
    release.set()
    assert loop.stop()


class SetClock(FakeClock):
    """Time can be set; as with a ROS clock, a sleeper returns early when it was set back or is paused."""

    paused = rewound = False

    def set(self, now_ns):
        self.rewound = now_ns < self._now_ns
        self._now_ns = now_ns

    def sleep_until(self, deadline_ns):
        if not self.paused and not self.rewound:
            super().sleep_until(deadline_ns)
        self.rewound = False


def test_a_paused_clock_gives_no_ticks_and_no_misses():
    log = Log(clock=SetClock(START), leap_s=1.0).advance(2)
    log.clock.paused = True
    log.advance(5)
    assert len(log.ticks) == 2
    log.clock.paused = False
    log.advance(1)
    assert log.ticks[-1] == (2, 0, 80, 80)


@pytest.mark.parametrize("delta_ms", [-5000, 60_000])
def test_a_clock_that_is_set_starts_new_deadlines_and_misses_nothing(delta_ms):
    log = Log(clock=SetClock(START), sub_ticks=2, leap_s=1.0).advance(3)
    log.clock.set(log.clock.now_ns() + delta_ms * MS)
    log.advance(3)
    assert [jump // MS for jump in log.jumps] == [delta_ms]
    assert [(k, missed) for k, missed, _, _ in log.ticks] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert log.ticks[-1][2] - log.ticks[-2][2] == 40


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="period_s"):
        ControlLoop(0.0, print, FakeClock())


def test_ros_clock_wakes_with_simulated_time_and_returns_when_it_starts_over():
    source = ROSClock()
    source._set_ros_time_is_active(True)
    source.set_ros_time_override(Time(seconds=5))
    clock, woken = RosClock(source), []
    sleeper = threading.Thread(target=lambda: woken.append((clock.sleep_until(6 * 10**9), clock.now_ns())[1]))
    sleeper.start()
    source.set_ros_time_override(Time(seconds=6, nanoseconds=1))
    sleeper.join(5.0)
    assert woken == [6 * 10**9 + 1]
    clock.sleep_until(9 * 10**9)  # paused: returns early
    assert clock.now_ns() == 6 * 10**9 + 1
    clock.close()
