"""Guards against: a stuck joint nobody notices, an alarm for a mere lag or a short bump, a fault without the joint."""

from __future__ import annotations

import numpy as np
import pytest

from phyai_core.approach import approach_rows
from phyai_core.tracking import TrackingGuard
from phyai_core.types import Reason

S = 1_000_000_000
MOVING = np.linspace(0.0, 0.2, 10)[:, None] * np.ones(2)  # 0.2 rad of recent commands


def guard(**changes) -> TrackingGuard:
    return TrackingGuard(("yaw", "elbow"), **{"max_error": (0.1, 0.1), "time_s": 0.3, **changes})


def test_an_arm_that_lags_behind_its_commands_is_fine():
    watch = guard()
    assert all(watch.check(i * S // 10, MOVING, np.array([0.02, 0.15])) is None for i in range(20))


def test_a_joint_far_from_its_commands_for_the_set_time_is_named():
    watch = guard()
    stuck = np.array([0.1, -0.15])
    assert watch.check(0, MOVING, stuck) is None
    assert watch.check(S // 5, MOVING, stuck) is None
    fault = watch.check(3 * S // 10, MOVING, stuck)
    assert fault.reason is Reason.FOLLOWING_ERROR
    assert fault.text.startswith("elbow is 0.150 from its command for 0.3 s")


def test_a_short_deviation_does_not_count():
    watch = guard()
    for start in (0, S, 2 * S):
        assert watch.check(start, MOVING, np.array([0.5, 0.5])) is None
        assert watch.check(start + S // 5, MOVING, np.array([0.1, 0.1])) is None


def test_a_large_effort_is_a_stall():
    watch = guard(max_error=(), max_effort=(5.0, 5.0), time_s=0.1)
    effort = np.array([1.0, -6.0])
    assert watch.check(0, MOVING, MOVING[-1], effort) is None
    fault = watch.check(S // 10, MOVING, MOVING[-1], effort)
    assert fault.reason is Reason.STALLED and fault.text.startswith("elbow has an effort of -6.00")


def test_without_bounds_nothing_is_checked():
    watch = TrackingGuard(("yaw",))
    assert watch.check(0, np.zeros((3, 1)), np.array([9.0]), np.array([99.0])) is None


@pytest.mark.parametrize("limits", [(0.2, 5.0, np.inf), (5.0, 0.3, np.inf), (5.0, 50.0, 2.0)])
def test_an_approach_goes_from_rest_to_rest_inside_its_limits(limits):
    start, target, dt_s = np.array([0.0, 1.0]), np.array([0.5, 0.8]), 0.02
    rows = approach_rows(start, target, *(np.full(2, limit) for limit in limits), dt_s).astype(float)
    padded = np.vstack([start, start, start, rows, target, target, target])
    for order, limit in enumerate(limits, start=1):
        assert np.abs(np.diff(padded, order, axis=0)).max() / dt_s**order <= limit * 1.02 + 2e-2 * (order == 3)
    np.testing.assert_allclose(rows[-1], target, atol=1e-6)
    assert np.all(np.diff(rows[:, 0]) >= 0) and np.all(np.diff(rows[:, 1]) <= 0)


def test_an_approach_without_limits_or_numbers_is_refused():
    one = np.ones(1)
    with pytest.raises(ValueError, match="finite positions and positive limits"):
        approach_rows(np.zeros(1), np.array([np.nan]), one, one, one, 0.02)
    with pytest.raises(ValueError, match="positive limits"):
        approach_rows(np.zeros(1), one, 0 * one, one, one, 0.02)
