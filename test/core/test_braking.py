"""Guards against: a stop that brakes harder than a joint may, leaves the straight line, overshoots, reverses or does
not end at rest; and row velocities that make a controller's cubic leave the span of the rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phyai_core.braking import braking_tail, row_velocities

VELOCITIES = st.lists(st.floats(-4.0, 4.0), min_size=1, max_size=7)
PERIODS_S = st.sampled_from([0.002, 0.02, 0.04, 0.1])


def cubic(p0, p1, v0, v1, dt_s, share):
    """Position at `share` of a Hermite segment, as a trajectory controller interpolates."""
    a, b = dt_s * v0 - (p1 - p0), -dt_s * v1 + (p1 - p0)
    return p0 + share * (p1 - p0) + share * (1 - share) * ((1 - share) * a + share * b)


LIMITS = st.lists(st.floats(0.5, 20.0), min_size=7, max_size=7)


@given(VELOCITIES, PERIODS_S, LIMITS)
@example([3e-14], 0.1, [1.0] * 7)
def test_a_tail_ends_at_rest_inside_the_limits_without_overshoot(velocity, dt_s, limits):
    velocity = np.array(velocity)
    limit = np.array(limits[: len(velocity)])
    start = np.linspace(-1.0, 1.0, len(velocity))
    positions, velocities = braking_tail(start, velocity, limit, dt_s)

    assert (velocities[-1] == 0.0).all() and len(positions) == len(velocities) >= 1
    all_velocities = np.vstack([velocity, velocities])
    assert (np.abs(np.diff(all_velocities, axis=0)) <= limit * dt_s * (1 + 1e-6)).all()
    assert (np.diff(np.abs(all_velocities), axis=0) <= 1e-12).all(), "speed never rises"
    assert (velocities * velocity >= 0.0).all(), "no joint turns around"

    travel = positions - start
    slowest = np.argmax(np.abs(velocity) / limit)
    bound = velocity[slowest] ** 2 / (2 * limit[slowest]) + abs(velocity[slowest]) * dt_s / 2
    rounding = 1e-15  # of positions around 1
    assert abs(travel[-1, slowest]) <= bound * (1 + 1e-6) + rounding, "at most half a row beyond v^2 / 2a"
    np.testing.assert_allclose(travel[-1], velocity * len(positions) * dt_s / 2, atol=1e-9)
    fraction = travel[:, [slowest]] * velocity / velocity[slowest] if velocity[slowest] else np.zeros_like(travel)
    np.testing.assert_allclose(travel, fraction, atol=1e-9, err_msg="straight in joint space")


@given(VELOCITIES, PERIODS_S)
def test_positions_are_the_integral_of_the_velocities(velocity, dt_s):
    velocity = np.array(velocity)
    positions, velocities = braking_tail(np.zeros_like(velocity), velocity, 3.0, dt_s)
    mean_velocity = (np.vstack([velocity, velocities[:-1]]) + velocities) / 2
    np.testing.assert_allclose(np.cumsum(mean_velocity * dt_s, axis=0), positions, atol=1e-9)


def test_known_stop():
    """1 rad/s at 2.5 rad/s^2 takes 0.4 s and 0.2 rad; the slower joint comes along."""
    positions, velocities = braking_tail([0.0, 1.0], [1.0, -0.5], [2.5, 10.0], 0.1)
    np.testing.assert_allclose(velocities, [[0.75, -0.375], [0.5, -0.25], [0.25, -0.125], [0.0, 0.0]])
    np.testing.assert_allclose(positions[-1], [0.2, 0.9])
    assert not np.signbit(velocities[-1]).any()


def test_at_rest_the_tail_is_one_row_that_stays():
    positions, velocities = braking_tail([0.3, -0.2], [0.0, 0.0], [1.0, 1.0], 0.04)
    np.testing.assert_array_equal(positions, [[0.3, -0.2]])
    np.testing.assert_array_equal(velocities, [[0.0, 0.0]])


@pytest.mark.parametrize(("velocity", "limit"), [([1.0], [0.0]), ([1.0], [-1.0]), ([1.0], [np.inf]), ([np.nan], [1.0])])
def test_no_tail_from_unusable_numbers(velocity, limit):
    with pytest.raises(ValueError, match="finite"):
        braking_tail([0.0], velocity, limit, 0.04)


def test_row_velocities_of_even_motion_are_exact():
    rows = np.arange(1, 5)[:, None] * np.array([0.1, -0.2])
    np.testing.assert_allclose(row_velocities(rows, 0.04, np.zeros(2)), np.tile([2.5, -5.0], (4, 1)))


def test_row_velocities_are_central_one_sided_at_the_end_and_zero_at_a_turn():
    velocities = row_velocities([[1.0], [3.0], [2.0]], 1.0, [0.0])
    np.testing.assert_allclose(velocities, [[1.5], [0.0], [-1.0]])
    np.testing.assert_allclose(row_velocities([[1.0]], 0.5, [0.0]), [[2.0]])


@given(st.lists(st.floats(-2.0, 2.0), min_size=2, max_size=12), PERIODS_S)
def test_the_cubic_never_leaves_the_span_between_two_rows(values, dt_s):
    rows = np.array(values[1:])[:, None]
    velocities = row_velocities(rows, dt_s, np.array(values[:1]))
    for i in range(len(rows) - 1):
        curve = cubic(rows[i], rows[i + 1], velocities[i], velocities[i + 1], dt_s, np.linspace(0, 1, 21))
        low, high = sorted([rows[i, 0], rows[i + 1, 0]])
        assert low - 1e-9 <= curve.min() and curve.max() <= high + 1e-9
