"""Outputs by action on a live graph: goals reach the server, refusals and aborts stop the robot, nobody waits.

Guards against: a goal that is refused without anyone noticing, an abort of a goal already replaced taken for a fault,
a node that blocks on a missing server, an arm and a gripper that need two nodes.
"""

from __future__ import annotations

import threading

import pytest
from rclpy.action import ActionServer, CancelResponse, GoalResponse

from ros.policy_rig import PolicyRig
from ros.standins import provide

ARM = "joint_trajectory_controller/follow_joint_trajectory"


@pytest.fixture(autouse=True, scope="module")
def control_msgs():
    provide("control_msgs")


class FakeServer:
    """Accepts goals and aborts the one before with `replaced`; `finish` ends the newest with an error code."""

    def __init__(self, rig: PolicyRig, kind: type, name: str, accept: bool = True) -> None:
        self.goals: list = []
        self._kind, self._over = kind, threading.Event()
        self.error_code, self.error_string = 0, ""
        self._server = ActionServer(
            rig.robot,
            kind,
            name,
            execute_callback=self._execute,
            goal_callback=lambda goal: GoalResponse.ACCEPT if accept else GoalResponse.REJECT,
            cancel_callback=lambda handle: CancelResponse.ACCEPT,
        )

    def _execute(self, handle):
        self.goals.append(handle.request)
        result = self._kind.Result()
        if hasattr(result, "error_code"):
            result.error_code, result.error_string = self.error_code, self.error_string
        (handle.abort if self.error_code else handle.succeed)()
        return result


def make_rig(**parameters) -> PolicyRig:
    return PolicyRig(**{"output.type": "follow_joint_trajectory", **parameters})


def arm_type() -> type:
    from control_msgs.action import FollowJointTrajectory

    return FollowJointTrajectory


def test_each_chunk_is_a_goal_and_the_stop_is_one_too():
    with make_rig() as rig:
        server = FakeServer(rig, arm_type(), ARM)
        rig.start()
        rig.wait_for_state("running")
        rig.wait(lambda: len(server.goals) >= 2, "two goals")
        assert rig.node.trigger_deactivate().name == "SUCCESS"
        rig.wait(lambda: len(server.goals[-1].trajectory.points) < 24, "the braking goal")
        assert not any(server.goals[-1].trajectory.points[-1].velocities)
        assert rig.robot.heard["trajectory"] == []  # never the topic beside the action


@pytest.mark.parametrize("code", [-4, -1])
def test_an_abort_by_the_controller_stops_the_robot_in_its_words(code):
    with make_rig() as rig:
        server = FakeServer(rig, arm_type(), ARM)
        server.error_code, server.error_string = code, "yaw lags"
        rig.start()
        rig.wait(lambda: any(s.reason == "controller" for s in rig.robot.heard["status"]), "the fault")
        status = next(s for s in rig.robot.heard["status"] if s.reason == "controller")
        assert "yaw lags" in status.text and ARM in status.text


@pytest.mark.parametrize("present", [False, True])
def test_a_missing_server_or_a_refusal_is_told(present):
    with make_rig() as rig:
        if present:
            FakeServer(rig, arm_type(), ARM, accept=False)
        rig.start()
        words = "rejected" if present else "no action server"
        rig.wait(lambda: any(words in s.text for s in rig.robot.heard["status"]), words)


def test_an_arm_and_a_gripper_are_driven_by_one_policy():
    from control_msgs.action import GripperCommand

    parameters = {
        "outputs.keys": ["arm", "gripper"],
        "outputs.arm.type": "joint_trajectory",
        "outputs.arm.profile": "splice",
        "outputs.arm.joints": ["shoulder"],
        "outputs.gripper.type": "gripper_command",
        "outputs.gripper.joints": ["elbow"],
        "outputs.gripper.max_effort": 3.0,
    }
    with PolicyRig(**parameters) as rig:
        server = FakeServer(rig, GripperCommand, "gripper_controller/gripper_cmd")
        rig.start()
        rig.wait_for_news("trajectory", 2)
        rig.wait(lambda: server.goals, "a gripper goal")
        assert server.goals[0].command.max_effort == 3.0
        assert server.goals[0].command.position == pytest.approx(-0.2, abs=0.05)
        assert list(rig.robot.heard["trajectory"][-1].joint_names) == ["shoulder"]
        assert rig.node.trigger_deactivate().name == "SUCCESS"


def test_outputs_that_do_not_share_the_joints_are_refused():
    parameters = {"outputs.keys": ["arm"], "outputs.arm.joints": ["shoulder"]}
    with PolicyRig(**parameters) as rig:
        assert rig.node.trigger_configure().name == "FAILURE"
