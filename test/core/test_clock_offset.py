"""Guards against: a camera clock that runs ahead, drifts or steps back, and transport taken for any of these."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phyai_core.clock_offset import ClockOffset

START_NS = 1_700_000_000_000_000_000


def watch(offset_s: float = 0.0, drift: float = 0.0, seconds: float = 40.0, transport_s: float = 0.004) -> ClockOffset:
    """25 Hz; `offset_s` and `drift` by which the foreign clock lags; transport is never below `transport_s`."""
    generator, clock = np.random.default_rng(0), ClockOffset()
    for k in range(round(25 * seconds)):
        made_s = k / 25
        arrived_s = made_s + transport_s + generator.exponential(0.002)
        stamp_s = made_s - offset_s - drift * made_s
        clock.note(START_NS + round(stamp_s * 1e9), START_NS + round(arrived_s * 1e9))
    return clock


def test_equal_clocks_show_the_shortest_transport_and_no_drift():
    state = watch().estimate()
    assert state.offset_s == pytest.approx(0.004, abs=0.0005)
    assert abs(state.drift) < 50e-6
    assert state.steps_back == 0


def test_a_clock_ahead_shows_as_a_negative_offset():
    assert watch(offset_s=-0.03).estimate().offset_s == pytest.approx(-0.026, abs=0.001)


@pytest.mark.parametrize("drift", [300e-6, -1e-3])
def test_drift_is_told_from_jitter(drift):
    assert watch(drift=drift).estimate().drift == pytest.approx(drift, rel=0.25)


def test_drift_is_unknown_at_first():
    assert math.isnan(watch(seconds=5.0).estimate().drift)
    assert math.isnan(ClockOffset().estimate().offset_s)


def test_an_offset_of_more_than_a_minute_ago_is_forgotten():
    clock = watch(offset_s=-0.5, seconds=2.0)
    for k in range(70):
        clock.note(START_NS + round((100 + k) * 1e9), START_NS + round((100.01 + k) * 1e9))
    assert clock.estimate().offset_s == pytest.approx(0.01)


def test_stamps_that_step_back_are_counted():
    clock = ClockOffset()
    for stamp_s in (1.0, 2.0, 1.5, 3.0):
        clock.note(START_NS + round(stamp_s * 1e9), START_NS + round(4e9))
    assert clock.estimate().steps_back == 1
