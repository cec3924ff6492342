"""Guards against: limits broken anywhere in a chunk, a slow-down where none is needed, a step at the seam, a refusal
without name and number, limits that are silently stretched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phyai_core.limiter import TOLERANCE, JointLimits, Limiter

DT_S, ROWS = 0.04, 32
STEPS = np.arange(1, ROWS + 1)[:, None] * np.ones(2)


def make(velocity=1.0, acceleration=5.0, jerk=np.inf, lower=-np.inf, upper=np.inf, **bounds) -> Limiter:
    values = (np.full(2, value) for value in (velocity, acceleration, jerk, lower, upper))
    return Limiter(JointLimits(("yaw", "elbow"), *values), DT_S, **bounds)


def derivatives(rows, before) -> list[float]:
    """Largest velocity, acceleration, jerk from the last known positions on."""
    values = np.vstack([*([before[0]] * (4 - len(before))), *before, rows])
    largest = []
    for order in range(3):
        values = np.diff(values, axis=0) / DT_S
        largest.append(float(np.abs(values[3 - order :]).max()))
    return largest


def test_a_chunk_inside_the_limits_is_left_alone():
    rows = 0.2 * DT_S * STEPS
    limited = make().fit(rows, [np.zeros(2)])
    assert not limited.changed and limited.slowdown == 1.0
    np.testing.assert_array_equal(limited.rows, rows)


@pytest.mark.parametrize(
    ("rows", "before"),
    [
        (2.0 * DT_S * STEPS, [-0.04 * np.ones(2), np.zeros(2)]),  # twice as fast as allowed
        (0.8 * DT_S * STEPS, [np.zeros(2)]),  # full speed at once, from rest
        (0.3 * (1 - np.cos(0.25 * STEPS)), [np.zeros(2)]),  # turns too hard
        (np.where(STEPS > 20, 1.0, 0.0), [np.zeros(2)]),  # a jump deep in the chunk
        (0.3 + 0.1 * DT_S * STEPS, [-0.02 * np.ones(2), np.zeros(2)]),  # a gap at the seam
    ],
)
def test_a_chunk_beyond_the_limits_is_travelled_slower_along_the_same_path(rows, before):
    limited = make(max_slowdown=6.0).fit(rows, before)
    assert limited.changed and 1.0 < limited.slowdown <= 6.0
    velocity, acceleration, _ = derivatives(limited.rows, before)
    assert velocity <= 1.0 * TOLERANCE and acceleration <= 5.0 * TOLERANCE
    assert np.all(np.diff(limited.places) > 0) and limited.places[-1] <= ROWS - 1
    path = np.vstack([before[-1], rows])
    for row, place in zip(limited.rows, limited.places, strict=True):
        left = path[int(place + 1)], path[min(int(place + 1) + 1, ROWS)]
        assert np.all(row >= np.minimum(*left) - 1e-9) and np.all(row <= np.maximum(*left) + 1e-9)
    assert any("yaw at" in reason and "limit" in reason for reason in limited.reasons)


def test_jerk_is_kept_where_it_is_limited():
    rows = 0.3 * (1 - np.cos(0.2 * STEPS))
    limited = make(jerk=60.0).fit(rows, [np.zeros(2)])
    assert derivatives(limited.rows, [np.zeros(2)])[2] <= 60.0 * TOLERANCE


def test_positions_are_moved_onto_their_bound_and_the_joint_is_named():
    rows = 0.5 * DT_S * STEPS * np.array([1.0, 0.5])
    limited = make(upper=0.6).fit(rows, [np.array([-0.02, -0.01]), np.zeros(2)])
    assert limited.joints == (0,) and limited.rows.max() <= 0.6
    assert "yaw moved by 0.040 into its position limits" in limited.reasons


@pytest.mark.parametrize(
    ("rows", "bounds", "words"),
    [
        (0.5 * DT_S * STEPS, {"upper": 0.4}, "yaw goes 0.240 beyond its position limits, allowed is 0.1"),
        (1.5 + 0.1 * DT_S * STEPS, {}, "more than a slow-down of 3 cures"),
    ],
)
def test_beyond_the_bounds_a_chunk_is_refused_with_joint_and_number(rows, bounds, words):
    assert words in make(**bounds).fit(rows, [np.zeros(2)])


def test_limits_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match=r"jerk limits .* one for each of yaw, elbow"):
        JointLimits(("yaw", "elbow"), np.ones(2), np.ones(2), np.ones(3), -np.ones(2), np.ones(2))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.2), st.floats(0.0, 1.5))
def test_whatever_comes_out_keeps_every_limit(seed, noise, speed):
    rng = np.random.default_rng(seed)
    start = rng.uniform(-0.5, 0.5, 2)
    velocity = np.clip(rng.normal(0, speed, 2), -1.0, 1.0)
    rows = start + velocity * DT_S * STEPS + rng.normal(0, noise, 2) * np.sin(0.2 * STEPS)
    before = [start - velocity * DT_S, start]
    limited = make(lower=-1.0, upper=1.0).fit(rows, before)
    if isinstance(limited, str):
        assert "limit" in limited
        return
    reached, acceleration, _ = derivatives(limited.rows, before)
    assert reached <= TOLERANCE and acceleration <= 5.0 * TOLERANCE
    assert np.abs(limited.rows).max() <= 1.0 or np.abs(start).max() > 1.0
