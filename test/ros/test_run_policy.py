"""Guards against: goals that end without stopping the robot, a cancel that leaks motion, two goals at once, an abort
that looks like success, feedback without timing."""

from __future__ import annotations

import math

import pytest
from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient

from phyai_ros.action import RunPolicy
from ros.policy_rig import PolicyRig, is_braking


@pytest.fixture
def rig():
    with PolicyRig(require_goal=True) as rig:
        yield rig


class Client:
    def __init__(self, rig: PolicyRig) -> None:
        self.rig, self.feedback = rig, []
        self._client = ActionClient(rig.robot, RunPolicy, "policy/run_policy")
        rig.wait(self._client.server_is_ready, "the action server")

    def send(self, **goal):
        future = self._client.send_goal_async(
            RunPolicy.Goal(**goal), feedback_callback=lambda message: self.feedback.append(message.feedback)
        )
        self.rig.wait(future.done, "the answer to the goal")
        return future.result()

    def result(self, handle):
        future = handle.get_result_async()
        self.rig.wait(future.done, "the result")
        return future.result()


def assert_stopped(rig: PolicyRig) -> None:
    assert is_braking(rig.robot.heard["trajectory"][-1])
    sent = len(rig.robot.heard["trajectory"])
    rig.wait_for_news("status", 4)
    assert len(rig.robot.heard["trajectory"]) == sent
    assert rig.robot.status.state == "disabled" and rig.robot.status.reason == "paused"


def test_a_goal_runs_its_time_and_ends_at_rest(rig):
    rig.start()
    client = Client(rig)
    rig.wait_for_state("disabled", "paused")
    assert rig.robot.heard["trajectory"] == []
    handle = client.send(prompt="push the puck", time_limit=1.0)
    assert handle.accepted
    result = client.result(handle)
    assert result.status == GoalStatus.STATUS_SUCCEEDED
    assert result.result.outcome == "finished" and result.result.chunks >= 2
    assert 1.0 <= result.result.duration < 3.0
    last = client.feedback[-1]
    assert last.status.prompt == "push the puck" and last.progress == 1.0
    assert last.timing.l_inference > 0
    assert_stopped(rig)


def test_cancel_stops_the_robot_and_begins_an_epoch(rig):
    rig.start()
    client = Client(rig)
    handle = client.send()
    rig.wait_for_news("trajectory", 2)
    epoch = rig.robot.status.epoch
    assert math.isnan(client.feedback[-1].progress)
    handle.cancel_goal_async()
    result = client.result(handle)
    assert result.status == GoalStatus.STATUS_CANCELED and result.result.outcome == "cancelled"
    rig.wait_for_news("status", 2)
    assert rig.robot.status.epoch > epoch
    assert_stopped(rig)


def test_an_estop_aborts_the_goal_and_another_goal_can_follow(rig):
    rig.start()
    client = Client(rig)
    handle = client.send(time_limit=60.0)
    rig.wait_for_news("trajectory", 2)
    rig.node._session._pipeline.press_estop(True)
    result = client.result(handle)
    assert result.status == GoalStatus.STATUS_ABORTED and "emergency stop" in result.result.text
    rig.node._session._pipeline.press_estop(False)
    assert rig.node._session._pipeline.clear_estop() == ""
    second = client.send(time_limit=0.5)
    assert second.accepted and client.result(second).result.outcome == "finished"


def test_one_goal_at_a_time_and_none_while_inactive(rig):
    assert rig.node.trigger_configure().name == "SUCCESS"
    client = Client(rig)
    assert not client.send().accepted
    rig.activate()
    first = client.send()
    assert first.accepted and not client.send().accepted
    assert not client.send(time_limit=-1.0).accepted
    assert rig.node.trigger_deactivate().name == "SUCCESS"
    assert client.result(first).result.outcome == "aborted"
