"""Guards against: a sleep that returns early, time that runs backwards, a fake clock that wakes a sleeper early."""

from __future__ import annotations

import threading

import pytest

from phyai_core.clock import FakeClock, SteadyClock


def test_steady_clock_never_wakes_early():
    clock = SteadyClock()
    deadline_ns = clock.now_ns() + 2_000_000
    clock.sleep_until(deadline_ns)
    woke_ns = clock.now_ns()
    clock.sleep_until(deadline_ns - 1)
    assert deadline_ns <= woke_ns <= clock.now_ns()


def test_fake_clock_jumps_to_the_deadline_and_never_back():
    clock = FakeClock(start_ns=100)
    clock.sleep_until(250)
    clock.sleep_until(200)
    assert clock.now_ns() == 250
    clock.advance(50)
    assert clock.now_ns() == 300
    with pytest.raises(ValueError, match="step_ns -1"):
        clock.advance(-1)


def test_a_blocked_sleeper_wakes_exactly_when_its_deadline_is_reached():
    clock = FakeClock(blocking=True)
    woke = threading.Event()
    sleeper = threading.Thread(target=lambda: (clock.sleep_until(100), woke.set()))
    sleeper.start()
    assert clock.wait_for_sleeper(timeout_s=10.0)
    clock.advance(99)
    assert not woke.wait(timeout=0.02) and clock.wait_for_sleeper(timeout_s=10.0)
    clock.advance(1)
    assert woke.wait(timeout=10.0)
    sleeper.join(timeout=10.0)
    assert not clock.wait_for_sleeper(timeout_s=0.0)
