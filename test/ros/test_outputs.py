"""What the robot gets from the outputs, judged by models of the real controllers.

Guards against: rejected trajectories, velocity steps at chunk seams, a robot that runs on after our death, a jerk back
after a stall, holds repeated or forgotten, numbers that are not finite, joints in the wrong order, a wrong rate.
"""

from __future__ import annotations

import numpy as np
import pytest

from phyai_core.types import Action, ActionChunk, Adoption, Command, Fault, InferenceRequest, Reason
from phyai_ros.outputs import load_output
from phyai_ros.sim.controllers import ForwardCommandController
from ros.output_rig import DT_NS, EPOCH_NS, HORIZON, MAX_ACCELERATION, TrajectoryRig, make_config, ramp

FAMILIES = [("replace", True, "splice"), ("splice", True, "splice"), ("replace", False, "replace")]
NO_CAMERA = Fault(Reason.INPUT_STALE, "camera front is 0.5 s old")


@pytest.fixture(params=FAMILIES, ids=lambda case: f"{case[0]}-desired={case[1]}-profile={case[2]}")
def rig(request):
    family, desired, profile = request.param
    return TrajectoryRig(family, desired, profile)


def velocities(message) -> np.ndarray:
    return np.array([point.velocities for point in message.points])


def test_trajectories_are_accepted_smooth_and_end_at_rest(rig):
    rig.run(100)
    assert rig.robot.rejections == []
    assert len(rig.messages) >= 10
    assert rig.robot.largest_acceleration < 6.0  # the curve itself: 3 rad/s^2; position-only points: above 100
    for message in rig.messages:
        assert list(message.joint_names) == ["a", "b"]
        assert len(message.points) >= 2
        assert np.all(velocities(message)[-1] == 0.0)
        assert all(len(point.positions) == 2 for point in message.points)


def test_the_reference_in_the_node_is_the_one_in_the_controller(rig):
    rig.run(60)
    at_tick = rig.output.reference_at(rig.k + 1)
    late_s = 0.005  # the controller runs one message and one cycle behind at most
    difference = np.abs(at_tick.position - rig.robot.references[-1])
    assert np.all(difference <= np.abs(at_tick.velocity) * 2 * late_s + 1e-3)


def test_after_our_death_the_robot_brakes_to_the_predicted_rest(rig):
    rig.run(40)
    rest_tick, end = rig.output.rest_tick, rig.output.reference_at(10**9).position
    rig.die(rest_tick - rig.k + 3)
    rest_ns = rig.stamp_ns(rest_tick) + 15_000_000
    speeds = np.abs(rig.robot.speeds).max(axis=1)
    after = np.array(rig.robot.times_ns) >= rest_ns
    assert speeds[~after][-60:].max() > 0.1
    assert after.sum() > 3 and np.all(speeds[after] == 0.0)
    np.testing.assert_allclose(rig.robot.references[-1], end, atol=1e-9)
    assert rig.robot.largest_acceleration < 6.0


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("missed", [1, 7, 30])
def test_a_stall_never_moves_the_robot_back(case, missed):
    """Missed ticks count as executed. A stall longer than the rows left ends in the tail, up to v^2 / 2a past them."""
    rig = TrajectoryRig(*case, curve=ramp)
    rig.run(35)
    rows_left = rig.executor.rows_left
    speed = rig.output.reference_at(rig.k).velocity
    rig.tick(missed=missed)
    rig.run(40)
    assert rig.robot.rejections == []
    back = -np.diff(rig.robot.references, axis=0).min()
    if missed < rows_left:
        assert back < 1e-9
        assert rig.robot.largest_acceleration < 8.0
    else:
        assert back < speed.max() ** 2 / (2 * MAX_ACCELERATION)


def test_hold_publishes_one_braking_trajectory_and_then_waits(rig):
    rig.run(18)
    sent = len(rig.messages)
    before = rig.output.reference_at(rig.k + 1)
    assert np.abs(before.velocity).max() > 0.3
    assert rig.tick(fault=NO_CAMERA).action is Action.HOLD
    assert len(rig.messages) == sent + 1
    rig.run(20, fault=NO_CAMERA)
    assert len(rig.messages) == sent + 1
    assert rig.output.at_rest
    assert np.all(velocities(rig.messages[-1])[-1] == 0)
    travelled = np.abs(rig.robot.references[-1] - before.position)
    braking_s = np.abs(before.velocity).max() / MAX_ACCELERATION + DT_NS * 1e-9
    assert np.all(travelled <= np.abs(before.velocity) * braking_s)
    assert rig.robot.largest_acceleration < 8.0
    rig.run(30)  # inputs are back: it moves again, from the pose where it stopped
    assert len(rig.messages) > sent + 1
    assert np.abs(rig.robot.speeds[-1]).max() > 0.1
    assert rig.robot.rejections == []
    assert rig.robot.largest_acceleration < 8.0


@pytest.mark.parametrize("action", [Action.HOLD, Action.STOP, Action.NONE])
def test_starved_in_the_tail_nothing_new_is_published(action):
    rig = TrajectoryRig()
    first = next(command for command in rig.run(10) if command.action is Action.RUN)
    sent = len(rig.messages)
    after_rows = first.tick + HORIZON
    for k in range(after_rows, after_rows + 5):
        assert rig.output.update(Command(action, k, 0), EPOCH_NS + k * DT_NS) is None
    assert len(rig.messages) == sent


@pytest.mark.parametrize("action", [Action.STOP, Action.NONE])
def test_a_discarded_chunk_does_not_run_on(action):
    """A reset or a stop: the controller must not go on with rows of an epoch that is over."""
    rig = TrajectoryRig()
    rig.run(20)
    sent = len(rig.messages)
    rig.output.update(Command(action, rig.k + 1, 1), EPOCH_NS)
    rig.output.update(Command(action, rig.k + 2, 1), EPOCH_NS)
    assert len(rig.messages) == sent + 1
    assert rig.output.rest_tick - rig.k < 12


def run_command(rows, tick=5, index=0, seq=1) -> Command:
    actions = np.asarray(rows, dtype=np.float32)
    chunk = ActionChunk(1, seq, tick - index, 0, actions, actions, DT_NS)
    request = InferenceRequest(1, seq, tick - index, 0, None, None, 1)
    adoption = Adoption(request, 0, index, index, 0, 0, float("nan"))
    return Command(Action.RUN, tick, 1, row=actions[index], chunk=chunk, index=index, adoption=adoption)


@pytest.mark.parametrize("name", ["joint_trajectory", "forward_command"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_a_fault_and_is_never_published(name, bad):
    sent = []
    output = load_output(name)(make_config(), sent.append)
    output.start(np.zeros(2), 0)
    fault = output.update(run_command([[bad, 0.1], [0.1, 0.1]]), 0)
    assert fault.reason is Reason.BAD_CHUNK
    assert sent == []


def test_the_last_single_row_still_makes_a_trajectory_of_two_points():
    sent = []
    output = load_output("joint_trajectory")(make_config(), sent.append)
    output.start(np.zeros(2), 0)
    output.update(run_command([[0.0, 0.0]]), 0)
    assert len(sent[0].points) >= 2
    times_ns = [point.time_from_start.sec * 10**9 + point.time_from_start.nanosec for point in sent[0].points]
    assert times_ns == [DT_NS * (i + 1) - 10_000_000 for i in range(len(times_ns))]  # the stamp is that much later


@pytest.mark.parametrize("name", ["joint_trajectory", "forward_command"])
def test_columns_follow_the_order_of_the_controller(name):
    sent = []
    output = load_output(name)(make_config(controller_joints=("b", "a"), max_acceleration=(2.0,)), sent.append)
    output.start(np.array([1.0, 2.0]), 0)
    output.update(run_command([[1.0, 2.0], [1.0, 2.0]]), 0)
    published = sent[0].points[0].positions if name == "joint_trajectory" else sent[0].data
    assert list(published) == [2.0, 1.0]
    if name == "joint_trajectory":
        assert list(sent[0].joint_names) == ["b", "a"]


class ForwardRig:
    """A forward_command output at 100 Hz (4 per tick) before the model of its controller."""

    def __init__(self, **config) -> None:
        self.sent: list[np.ndarray] = []
        self.judge = ForwardCommandController(("a", "b"))
        config.setdefault("rate_hz", 100)
        self.output = load_output("forward_command")(make_config(**config), self._receive)
        self.output.start(np.zeros(2), 0)

    def _receive(self, message) -> None:
        assert self.judge.accept(message.data) is None
        self.sent.append(self.judge.update())

    def tick(self, command: Command) -> None:
        self.output.update(command, 0)
        for sub in range(1, self.output.sub_ticks):
            self.output.interpolate(sub / self.output.sub_ticks, 0)

    def forward(self, ticks: int) -> None:
        rows = np.outer(np.arange(1, ticks + 1), [0.02, -0.01])
        for k in range(ticks):
            self.tick(run_command(rows, tick=k, index=k))


def test_forward_commands_rise_evenly_between_rows_at_the_asked_rate():
    rig = ForwardRig()
    rig.forward(5)
    assert len(rig.sent) == 20
    np.testing.assert_allclose(np.diff(rig.sent, axis=0), np.tile([0.005, -0.0025], (19, 1)), atol=1e-7)
    np.testing.assert_allclose(rig.sent[3], [0.02, -0.01], atol=1e-7)  # the row is reached at the end of its tick


@pytest.mark.parametrize(("action", "repeats"), [(Action.HOLD, True), (Action.STOP, False), (Action.NONE, False)])
def test_forward_command_brakes_inside_the_limit_then_holds_or_falls_silent(action, repeats):
    rig = ForwardRig()
    rig.forward(5)
    assert not rig.output.at_rest
    for k in range(5, 15):
        rig.tick(Command(action, k, 1))
    acceleration = np.diff(rig.sent, 2, axis=0) / 0.01**2
    assert np.abs(acceleration).max() <= MAX_ACCELERATION * 1.001
    assert rig.output.at_rest
    assert (len(rig.sent) == 60) is repeats
    rig.tick(Command(action, 15, 1))
    assert (len(rig.sent) == 64) is repeats
    np.testing.assert_allclose(rig.sent[-1], rig.output.reference_at(16).position)


def test_forward_command_says_nothing_before_the_first_row():
    rig = ForwardRig()
    for k, action in enumerate((Action.NONE, Action.HOLD, Action.STOP)):
        rig.tick(Command(action, k, 0))
    assert rig.sent == []


def test_forward_command_after_a_stall_goes_on_from_what_it_sent_last():
    rig = ForwardRig()
    rig.forward(5)
    rig.tick(Command(Action.HOLD, 12, 1))  # seven ticks later: the robot has stopped by itself
    np.testing.assert_allclose(rig.sent[-1], [0.1, -0.05], atol=1e-6)


def test_a_bad_row_makes_forward_command_brake_instead_of_stopping_dead():
    rig = ForwardRig()
    rig.forward(5)
    rig.tick(run_command([[float("nan"), 0.0]], tick=5))
    assert np.all(np.isfinite(rig.sent))
    assert rig.sent[-1][0] > 0.1


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("servo", {}, "servo_twist"),
        ("joint_trajectory", {"max_acceleration": (1.0, 0.0)}, "limits.max_acceleration"),
        ("joint_trajectory", {"max_acceleration": (1.0,) * 3}, "limits.max_acceleration"),
        ("joint_trajectory", {"controller_joints": ("a", "c")}, "output.joints"),
        ("joint_trajectory", {"profile": "blend"}, "output.profile"),
        ("forward_command", {"rate_hz": 10.0}, "output.rate_hz"),
    ],
)
def test_wrong_settings_are_refused_by_name(name, changes, message):
    with pytest.raises(ValueError, match=message):
        load_output(name)(make_config(**changes), print)


def test_rates_that_do_not_divide_stay_below_what_was_asked_for():
    assert [ForwardRig(rate_hz=rate).output.sub_ticks for rate in (0, 25, 90, 100, 500)] == [1, 1, 3, 4, 20]


def test_a_start_pose_that_is_not_finite_is_refused():
    for name in ("joint_trajectory", "forward_command"):
        with pytest.raises(ValueError, match="finite"):
            load_output(name)(make_config(), print).start(np.array([0.0, np.nan]), 0)


def bend(steps: np.ndarray) -> np.ndarray:
    """A quarter turn on a circle of 0.4 rad at 0.5 rad/s."""
    angle = steps[:, None] * DT_NS * 1e-9 * 0.5 / 0.4
    eased = np.where(angle < 0.5, angle**2, angle - 0.25)
    return 0.4 * np.hstack([np.sin(eased), 1.0 - np.cos(eased)])


def test_a_stop_follows_the_path_that_was_planned():
    rig = TrajectoryRig("splice", True, "splice", curve=bend)
    rig.run(28)
    speed = np.abs(rig.output.reference_at(rig.k).velocity).max()
    rig.run(12, fault=NO_CAMERA)
    assert speed > 0.3 and rig.output.at_rest
    x, y = np.array(rig.robot.references[-60:]).T
    distance = np.abs(np.hypot(x, 0.4 - y) - 0.4)  # from the circle
    assert distance.max() < 1e-4  # straight ahead it would be 1e-3
    assert rig.robot.largest_acceleration < 8.0
