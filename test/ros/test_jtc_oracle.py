"""The controller models behave like their originals. Guards against a judge that is kinder than the real controller:
accepting what it rejects, blending where it steps, skipping points where it starts anew."""

from __future__ import annotations

import numpy as np
import pytest

from phyai_ros.sim.controllers import ForwardCommandController, JointTrajectoryController, Trajectory

S = 1_000_000_000
NOW = 100 * S
PERIOD = S // 100
REST = (np.zeros(2), np.zeros(2))


def trajectory(positions, times_s, velocities="zero", stamp_ns=0, names=("a", "b")) -> Trajectory:
    positions = np.array([[p, -p] for p in positions], dtype=float)
    if velocities == "zero":
        velocities = [0.0] * len(positions)
    velocities = None if velocities is None else np.array([[v, -v] for v in velocities], dtype=float)
    return Trajectory(tuple(names), stamp_ns, positions, velocities, tuple(round(t * S) for t in times_s))


def controller(family="replace", desired=True) -> JointTrajectoryController:
    made = JointTrajectoryController(("a", "b"), family, desired)
    made.activate(np.zeros(2))
    return made


def sample(made: JointTrajectoryController, time_s: float, measured=REST) -> float:
    """The command of joint a for NOW + time_s."""
    return made.update(NOW + round(time_s * S) - PERIOD, PERIOD, *measured)[0]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (trajectory([1], [1], names=("a",)), "1 joint names"),
        (trajectory([1], [1], names=("a", "x")), "unknown joint x"),
        (Trajectory(("a", "b"), 0, np.zeros((0, 2)), None, ()), "no points"),
        (Trajectory(("a", "b"), 0, np.zeros((1, 3)), None, (S,)), "positions of shape"),
        (Trajectory(("a", "b"), 0, np.zeros((1, 2)), np.zeros((1, 1)), (S,)), "velocities of shape"),
        (trajectory([1, 2], [1, 2], velocities=[0, 0.5]), "velocity of the last point"),
        (trajectory([1, 2], [1, 1]), "strictly increasing"),
        (trajectory([1, 2], [-1, 1]), "strictly increasing"),
        (trajectory([1, 2], [1, 2], stamp_ns=NOW - 3 * S), "in the past"),
        (trajectory([1], [0], stamp_ns=NOW - 1), "in the past"),
    ],
)
def test_rejects_with_the_reason_and_goes_on_with_the_old_one(message, reason):
    judge = controller()
    assert judge.accept(trajectory([1], [1], velocities=None), NOW) is None
    sample(judge, 0.01)
    assert reason in judge.accept(message, NOW)
    assert sample(judge, 0.5) == pytest.approx(0.5, abs=0.01)


def test_numbers_that_are_not_finite_pass_validation_as_in_the_original():
    assert controller().accept(trajectory([float("nan")], [1]), NOW) is None


def test_position_only_is_linear_and_velocities_make_it_cubic():
    linear, cubic = controller(), controller()
    linear.accept(trajectory([0, 1], [0, 1], velocities=None, stamp_ns=NOW), NOW)
    cubic.accept(trajectory([0, 1], [0, 1], stamp_ns=NOW), NOW)
    assert sample(linear, 0.25) == pytest.approx(0.25)
    assert sample(cubic, 0.25) == pytest.approx(3 * 0.25**2 - 2 * 0.25**3)
    assert sample(cubic, 0.5) == pytest.approx(0.5)


def test_end_is_held_and_joints_are_matched_by_name():
    judge = controller()
    judge.accept(trajectory([1], [1], names=("b", "a")), NOW)
    sample(judge, 0.01)
    np.testing.assert_allclose(judge.update(NOW + 9 * S, PERIOD, *REST), [-1, 1])


@pytest.mark.parametrize(("desired", "expected"), [(True, 0.0), (False, 0.4)])
def test_bridge_starts_from_the_last_command_or_from_the_measured_state(desired, expected):
    judge = controller(desired=desired)
    judge.accept(trajectory([1], [10], velocities=None), NOW)
    measured = (np.array([0.4, 0.4]), np.zeros(2))
    assert judge.update(NOW, PERIOD, *measured)[0] == pytest.approx(expected, abs=0.002)


def test_past_stamp_skips_points_on_the_replace_family_and_starts_late_on_the_splice_family():
    running = trajectory([0, 1, 2, 3], [0, 1, 2, 3], velocities=None, stamp_ns=NOW)
    newer = trajectory([0, 1, 2, 3], [0, 1, 2, 3], velocities=None, stamp_ns=NOW)
    values = {}
    for family in ("replace", "splice"):
        judge = controller(family)
        judge.accept(running, NOW)
        sample(judge, 0.5)
        judge.accept(newer, NOW + S // 2)
        sample(judge, 0.51)
        values[family] = sample(judge, 1.5)
    assert values["replace"] == pytest.approx(1.5)
    assert values["splice"] == pytest.approx(1.0, abs=0.02)  # its start was moved to 0.5 s


def test_future_stamp_kills_the_old_one_on_the_replace_family_and_is_awaited_on_the_splice_family():
    values = {}
    for family in ("replace", "splice"):
        judge = controller(family)
        judge.accept(trajectory([0, 2], [0, 2], velocities=None, stamp_ns=NOW), NOW)
        sample(judge, 0.5)
        judge.accept(trajectory([10, 10], [1, 2], velocities=None, stamp_ns=NOW + S), NOW)
        sample(judge, 0.51)
        values[family] = sample(judge, 1.0)
    assert values["replace"] == pytest.approx(0.5 + 9.5 * 0.5 / 1.5, abs=0.05)  # already on its way to the first point
    assert values["splice"] == pytest.approx(1.0, abs=0.02)


def test_splice_family_goes_on_from_the_velocity_of_the_old_trajectory_but_never_blends_a_single_point():
    speeds = {}
    for points in (1, 2):
        judge = controller("splice", desired=False)
        judge.accept(trajectory([0, 2], [0, 2], velocities=[1, 0], stamp_ns=NOW), NOW)
        sample(judge, 0.5)
        judge.accept(trajectory([2, 2.5][:points], [1, 2][:points]), NOW)
        judge.update(NOW + S // 2, PERIOD, *REST)
        speeds[points] = judge.reference[1][0]
    assert speeds[2] == pytest.approx(1.31, abs=0.05)
    assert speeds[1] == pytest.approx(0.0, abs=0.15)  # from the measured zero: a step


def test_splicing_for_ever_keeps_no_history():
    judge = controller("splice")
    for k in range(200):
        now_ns = NOW + k * S // 10
        judge.accept(trajectory([k, k], [1, 2], stamp_ns=now_ns), now_ns)
        judge.update(now_ns, PERIOD, *REST)
    assert len(judge._knots) < 10


def test_unknown_family_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="replace, splice"):
        JointTrajectoryController(("a",), "rolling")


def test_forward_command_drops_what_is_not_finite_and_switches_off_at_a_wrong_length():
    judge = ForwardCommandController(("a", "b"))
    judge.activate(np.zeros(2))
    assert judge.update() is None
    assert judge.accept([1.0, 2.0]) is None
    assert "finite" in judge.accept([float("nan"), 0.0])
    np.testing.assert_allclose(judge.update(), [1, 2])
    assert "deactivated" in judge.accept([1.0])
    assert judge.update() is None and not judge.active
