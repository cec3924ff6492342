"""Guards against: a lag made up for a robot at rest, a wrong one believed, one that mixes in time before a stop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phyai_core.actuation_lag import ActuationLag

DT_S, START_NS = 0.04, 1_700_000_000_000_000_000


def wave(times_s: np.ndarray) -> np.ndarray:
    """Two joints, smooth and not periodic within the lags looked at."""
    return np.stack([np.sin(2.1 * times_s) + 0.3 * np.sin(5.3 * times_s), np.cos(1.7 * times_s)], axis=-1)


def follow(lag_s: float, seconds: float = 4.0, noise: float = 0.0, path=wave, gain: float = 1.0) -> ActuationLag:
    """A robot that does `gain` times what it was told, `lag_s` later, measured at instants of its own."""
    generator = np.random.default_rng(0)
    tracker = ActuationLag(2, DT_S)
    for k in range(round(seconds / DT_S)):
        now_s = k * DT_S
        tracker.note_command(START_NS + round((now_s + DT_S) * 1e9), path(np.float64(now_s + DT_S)))
        seen_s = now_s - 0.007
        measured = gain * path(np.float64(seen_s - lag_s)) + noise * generator.standard_normal(2)
        tracker.note_state(START_NS + round(seen_s * 1e9), measured)
    return tracker


@pytest.mark.parametrize("lag_s", [0.0, 0.013, 0.06, 0.15, 0.35])
def test_the_lag_is_found_within_2_ms(lag_s):
    lag = follow(lag_s).update()
    assert lag.seconds == pytest.approx(lag_s, abs=0.002 + 0.02 * lag_s)
    assert lag.is_measured and lag.confidence > 0.99


def test_noise_and_a_robot_that_falls_short_lower_the_confidence_not_the_lag():
    lag = follow(0.08, noise=0.02, gain=0.9).update()
    assert lag.seconds == pytest.approx(0.08, abs=0.01)
    assert 0.9 < lag.confidence < 0.99


def test_a_robot_that_does_something_else_is_not_believed():
    tracker = follow(0.05)
    generator = np.random.default_rng(1)
    for k in range(100, 200):
        stamp_ns = START_NS + round(k * DT_S * 1e9)
        tracker.note_command(stamp_ns, wave(np.float64(k * DT_S)))
        tracker.note_state(stamp_ns, generator.standard_normal(2))
    assert not tracker.update().is_measured


@pytest.mark.parametrize(
    "tracker",
    [follow(0.05, seconds=1.0), follow(0.05, path=lambda t: np.zeros(2))],
    ids=["too short", "at rest"],
)
def test_without_enough_motion_there_is_no_lag(tracker):
    assert math.isnan(tracker.update().seconds) and not tracker.latest.is_measured


def test_the_last_answer_stands_after_a_stop():
    tracker = follow(0.05)
    known = tracker.update()
    tracker.clear()
    assert tracker.update() == known
