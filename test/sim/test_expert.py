"""Guards against: wrong kinematics, a planner that leaves its limits or touches the post, inconsistent plans."""

from __future__ import annotations

import numpy as np
import pytest

from phyai_ros.sim.arm import CONTROL_DT_S, POST_RADIUS_M, POST_X_M, TOOL_RADIUS_M
from phyai_ros.sim.expert import ACCELERATION_M_S2, TOP_SPEED_M_S, joints_for, plan, point_for

START = 0.14 + 0.005j


def test_forward_kinematics_undoes_inverse_kinematics():
    rng = np.random.default_rng(0)
    points = rng.uniform(0.13, 0.46, 50) + 1j * rng.uniform(-0.18, 0.18, 50)
    joints = joints_for(points)
    assert joints.shape == (50, 4) and joints.dtype == np.float32
    np.testing.assert_allclose(point_for(joints), points, atol=1e-5)
    np.testing.assert_allclose(joints[:, 1:].sum(axis=1), np.pi, atol=1e-5)  # the tool hangs vertically


def test_a_point_out_of_reach_stretches_the_arm_toward_it():
    joints = joints_for(2.0 + 2.0j)
    assert np.isfinite(joints).all()
    assert np.angle(point_for(joints)) == pytest.approx(np.pi / 4, abs=1e-5)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("puck_y_m", [0.02, 0.1, 0.17])
def test_plan_passes_on_its_side_and_ends_on_the_puck(side, puck_y_m):
    points = plan(START, 0j, puck_y_m, side, horizon=80)
    clearance_m = np.abs(points - POST_X_M).min()
    assert clearance_m > POST_RADIUS_M + TOOL_RADIUS_M + 0.01
    beside = points[np.argmin(np.abs(points.real - POST_X_M))]
    assert np.sign(beside.imag) == side
    assert abs(points[-1] - complex(0.43, puck_y_m - 0.08 * CONTROL_DT_S * 80)) < 0.01


def test_both_sides_begin_alike():
    left, right = (plan(0.14 + 0j, 0j, 0.1, side, horizon=32) for side in (1, -1))
    same = np.flatnonzero(left == right)
    assert 8 <= len(same) < 24
    assert abs(left[-1] - right[-1]) > 0.1


def test_plan_keeps_speed_and_acceleration():
    points = plan(START, 0j, 0.1, 1, horizon=80)
    velocity = np.diff(np.concatenate([[START, START], points])) / CONTROL_DT_S
    assert np.abs(velocity).max() <= TOP_SPEED_M_S + 1e-9
    assert np.abs(np.diff(velocity)).max() / CONTROL_DT_S <= ACCELERATION_M_S2 + 1e-9


def test_planning_again_on_the_way_continues_the_same_path():
    points = plan(START, 0j, 0.1, -1, horizon=40)
    velocity = (points[9] - points[8]) / CONTROL_DT_S
    again = plan(points[9], velocity, 0.1 - 0.08 * CONTROL_DT_S * 10, -1, horizon=30)
    np.testing.assert_allclose(again, points[10:], atol=1e-9)
