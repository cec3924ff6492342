"""The simulated robot is a robot: time, sensors, controller and task go on whatever the policy does.

Guards against: stamps that do not match what is shown, sensors at a wrong rate, a bad command that reaches the joints,
a slow machine that goes unnoticed, episodes that start before the policy is disabled, a node that does not end cleanly.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys

import numpy as np
import pytest

from phyai_ros.sim.arm import JOINTS, POLICY_JOINTS
from phyai_ros.sim.controllers import Trajectory
from phyai_ros.sim.robot import MAX_CATCH_UP_STEPS, ControllerConfig, RobotWorld
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.supervisor import FAREWELL_TICKS, Phase, Supervisor
from phyai_ros.sim.task import START_POINT, start_at

START_NS = 1_700_000_000_000_000_000
STEP_NS = 4_000_000


class World:
    """A robot world stepped by hand; keeps what its sensors say."""

    def __init__(self, **config) -> None:
        self.joints, self.ticks, self.told, self.k = [], [], [], -1
        self.world = RobotWorld(
            Scene(),
            ControllerConfig(**config),
            on_joints=lambda snapshot, stamp_ns: self.joints.append((stamp_ns, snapshot)),
            on_tick=lambda snapshot, stamp_ns: self.ticks.append((stamp_ns, snapshot)),
            on_reject=self.told.append,
        )
        self.start = start_at(START_POINT, 0.1)
        self.world.reset(self.start)

    @property
    def now_ns(self) -> int:
        return START_NS + self.k * STEP_NS

    @property
    def positions(self) -> np.ndarray:
        return self.joints[-1][1].positions

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 1e9 / STEP_NS)):
            self.step()

    def step(self, missed: int = 0) -> None:
        self.k += 1 + missed
        self.world.run_steps(self.k, missed, self.now_ns)

    def send(self, offset, seconds: float = 1.0, last_velocity: float = 0.0) -> None:
        """Go to the start pose plus `offset` [4]."""
        goal = self.start.joints[:4] + np.asarray(offset)
        points = np.stack([goal, goal])
        velocities = np.full((2, 4), 0.0)
        velocities[-1] = last_velocity
        times_ns = (round(seconds * 1e9), round(seconds * 1e9) + 40_000_000)
        self.world.follow(Trajectory(POLICY_JOINTS, self.now_ns, points, velocities, times_ns), self.now_ns)


def test_sensors_keep_their_rates_and_stamps():
    sim = World()
    sim.run(2.0)
    assert len(sim.joints) == pytest.approx(200, abs=1)
    assert len(sim.ticks) == 50
    assert {b - a for (a, _), (b, _) in zip(sim.ticks, sim.ticks[1:], strict=False)} == {40_000_000}
    stamp_ns, snapshot = sim.joints[-1]
    assert snapshot.time_s == pytest.approx((stamp_ns - START_NS) * 1e-9 + 0.004)


def test_a_trajectory_is_followed_and_held_and_tool_roll_stays():
    sim = World()
    sim.run(0.1)
    sim.send([0.3, 0, 0, 0])
    sim.run(2.0)
    assert sim.positions[0] == pytest.approx(sim.start.joints[0] + 0.3, abs=0.01)
    assert sim.positions[4] == pytest.approx(0.0, abs=0.01)
    assert abs(sim.joints[-1][1].velocities[0]) < 0.01


def test_a_rejected_trajectory_is_told_once_and_counted_and_changes_nothing():
    sim = World()
    sim.send([0.3, 0, 0, 0])
    sim.run(0.5)
    for _ in range(3):
        sim.send([-1, 0, 0, 0], last_velocity=0.2)
    sim.run(1.5)
    assert sim.told == ["the velocity of the last point is not zero"]
    assert sim.world.rejections[sim.told[0]] == 3
    assert sim.positions[0] == pytest.approx(sim.start.joints[0] + 0.3, abs=0.01)


def test_a_command_that_is_not_finite_never_reaches_the_joints():
    sim = World()
    sim.send([math.nan, 0, 0, 0])
    sim.run(1.5)
    assert np.all(np.isfinite(sim.positions))
    assert sum(sim.world.rejections.values()) > 0


def test_forward_commands_move_the_arm_and_only_the_active_controller_listens():
    sim = World(controller="forward_position_controller")
    sim.send([0.3, 0, 0, 0])
    assert sim.told == ["joint_trajectory_controller is not active"]
    sim.world.command(sim.start.joints[:4] + np.array([0.1, 0, 0, 0]))
    sim.run(1.0)
    assert sim.positions[0] == pytest.approx(sim.start.joints[0] + 0.1, abs=0.01)
    sim.world.command(np.zeros(3))
    assert "deactivated" in sim.told[-1]


def test_late_steps_are_made_up_for_up_to_a_limit_and_the_rest_is_reported():
    sim = World()
    sim.run(0.2)
    sim.step(missed=10)
    assert sim.world.real_time_factor == 1.0
    sim.step(missed=MAX_CATCH_UP_STEPS + 100)
    assert 0.4 < sim.world.real_time_factor < 0.6
    assert [b - a for (a, _), (b, _) in zip(sim.ticks, sim.ticks[1:], strict=False)].count(40_000_000) >= 8


@pytest.mark.parametrize(("name", "value"), [("controller", "servo"), ("jtc_family", "rolling")])
def test_unknown_controllers_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}: '{value}'.*choose one of"):
        ControllerConfig(**{name: value})


class Stage:
    """A supervisor with a policy that answers as told."""

    def __init__(self, episodes=2, listens=True) -> None:
        self.sim = World()
        self.enables, self.reports = [], []
        self.listens = listens
        self.supervisor = Supervisor(
            self.sim.world, self.enables.append, self.reports.append, lambda: self.listens, episodes, seed=7
        )

    def tick(self, ticks: int = 1) -> Phase:
        for _ in range(ticks):
            self.sim.run(0.04)
            stamp_ns, snapshot = self.sim.ticks[-1]
            self.supervisor.tick(snapshot, stamp_ns)
        return self.supervisor.phase


def test_an_episode_starts_only_when_the_policy_is_disabled_and_listens():
    stage = Stage(listens=False)
    stage.supervisor.note_status("running")
    assert stage.tick(30) is Phase.WAITING
    assert stage.enables == [False, False, False]  # repeated for a policy that starts late
    stage.supervisor.note_status("disabled")
    assert stage.tick(2) is Phase.WAITING
    stage.listens = True
    assert stage.tick(2) is Phase.SETTLING
    before = stage.sim.ticks[-1][1]
    assert stage.tick(3) is Phase.RUNNING
    assert stage.enables[-1] is True
    np.testing.assert_array_equal(before.puck_xy, stage.sim.ticks[-1][1].puck_xy)  # the world stood still


def test_episodes_end_with_an_outcome_and_need_a_new_answer_of_the_policy():
    stage = Stage(episodes=2)
    for episode in (1, 2):
        stage.supervisor.note_status("disabled")
        stage.tick(6)
        assert stage.supervisor.phase is Phase.RUNNING
        stage.supervisor.note_status("running")
        stage.tick(110)
        report = stage.reports[-1]
        assert (report["episode"], report["outcome"], report["seed"]) == (episode, "timeout", 6 + episode)
        assert report["duration_s"] == pytest.approx(4.4, abs=0.05)
        assert stage.enables[-1] is False
    assert stage.supervisor.phase is Phase.FINISHED
    assert stage.reports[-1]["finished"] and not stage.reports[-2]["finished"]
    stage.supervisor.note_status("disabled")
    assert stage.tick(20) is Phase.FINISHED
    assert [report["outcome"] for report in stage.reports] == ["running", "timeout"] * 2


@pytest.mark.parametrize("says", ["disabled", "running"])
def test_the_robot_stays_until_the_policy_has_stopped_but_not_for_ever(says):
    stage = Stage(episodes=1)
    stage.supervisor.note_status("disabled")
    stage.tick(116)
    assert stage.supervisor.phase is Phase.FINISHED and not stage.supervisor.is_over
    stage.supervisor.note_status(says)
    assert stage.supervisor.is_over is (says == "disabled")
    stage.tick(FAREWELL_TICKS)
    assert stage.supervisor.is_over


def test_a_fixed_puck_is_used_for_every_episode():
    world = World()
    Supervisor(world.world, print, print, lambda: False, puck_y_m=0.05)
    world.run(0.04)
    assert world.ticks[-1][1].puck_xy[1] == pytest.approx(0.05, abs=0.005)


# --- the node itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def start_robot(graph):
    """Start the node as a process of its own."""
    children = []

    def start(*parameters: str) -> subprocess.Popen:
        arguments = [text for parameter in parameters for text in ("-p", parameter)]
        command = [sys.executable, "-m", "phyai_ros.sim_robot", "--ros-args", *arguments]
        children.append(subprocess.Popen(command, env=graph.environment, stderr=subprocess.PIPE, text=True))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stderr.close()


def test_the_node_senses_moves_and_ends_cleanly_with_topics_only(graph, start_robot):
    from sensor_msgs.msg import Image, JointState
    from std_msgs.msg import Bool, String
    from trajectory_msgs.msg import JointTrajectory

    from phyai_ros.msg import PolicyStatus
    from phyai_ros.outputs.joint_trajectory import JointTrajectoryOutput, to_message
    from phyai_ros.outputs.track import TrajectoryPlan

    robot = start_robot("episodes:=1", "jtc_family:=splice")
    node, joints, images, enables, reports = graph.node("policy"), [], [], [], []
    node.create_subscription(JointState, "joint_states", joints.append, 10)
    node.create_subscription(Image, "camera/front/image_raw", images.append, 10)
    node.create_subscription(Bool, "policy/enable", lambda message: enables.append(message.data), 10)
    node.create_subscription(String, "sim_robot/episode", lambda message: reports.append(json.loads(message.data)), 10)
    status = node.create_publisher(PolicyStatus, "policy/status", 10)
    trajectory = node.create_publisher(JointTrajectory, JointTrajectoryOutput.default_topic, 10)
    graph.spin_until(lambda: len(joints) > 20 and len(images) > 5 and False in enables, what="sensors")

    assert list(joints[0].name) == list(JOINTS)
    assert (images[0].height, images[0].width, images[0].encoding, images[0].step) == (64, 64, "rgb8", 192)
    assert np.std(images[-1].data) > 5
    stamps_ns = [message.header.stamp.sec * 10**9 + message.header.stamp.nanosec for message in images]
    periods = np.diff(stamps_ns) / 40e6  # a busy machine may leave pictures out
    assert np.allclose(periods, np.round(periods), atol=0.025) and periods.min() > 0.9

    graph.spin_until(lambda: status.get_subscription_count() and trajectory.get_subscription_count())
    graph.spin_until(lambda: status.publish(PolicyStatus(state="disabled")) or True in enables, what="enable")
    graph.spin_until(lambda: reports and reports[-1]["outcome"] == "running", what="report")
    goal = np.array(joints[-1].position[:4])
    goal[0] += 0.3
    now_ns, times_ns = node.get_clock().now().nanoseconds, (500_000_000, 540_000_000)
    trajectory.publish(
        to_message(TrajectoryPlan(POLICY_JOINTS, now_ns, np.stack([goal] * 2), np.zeros((2, 4)), times_ns))
    )
    graph.spin_until(lambda: abs(joints[-1].position[0] - goal[0]) < 0.01, what="motion")
    robot.send_signal(signal.SIGINT)
    assert robot.wait(60) == 0
    assert "Traceback" not in robot.stderr.read()


def test_a_wrong_parameter_ends_the_node_with_one_sentence(start_robot):
    robot = start_robot("jtc_family:=rolling")
    assert robot.wait(60) == 1
    assert "jtc_family: 'rolling' does not exist; choose one of replace, splice." in robot.stderr.read()
