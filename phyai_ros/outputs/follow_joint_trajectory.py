"""Output to the FollowJointTrajectory action: the same trajectories as goals, for monitors that want results.

Each chunk is a goal that replaces the one before. Stopping sends a braking trajectory too: a cancel would make the
controller start from the measured state, a step by the following error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajectory_msgs.msg import JointTrajectory

from phyai_ros.outputs.channels import Channel, GoalChannel, TopicChannel, shadow_topic
from phyai_ros.outputs.joint_trajectory import JointTrajectoryOutput

if TYPE_CHECKING:
    from rclpy.node import Node

# control_msgs/action/FollowJointTrajectory.Result
ERRORS = {
    -1: "invalid goal",
    -2: "invalid joints",
    -3: "old header timestamp",
    -4: "path tolerance violated",
    -5: "goal tolerance violated",
}


class FollowJointTrajectoryOutput(JointTrajectoryOutput):
    """Goals for a joint_trajectory_controller. A refusal or an abort stops the robot with the controller's words."""

    name = "follow_joint_trajectory"
    interface = "control_msgs.action:FollowJointTrajectory"
    default_topic = "joint_trajectory_controller/follow_joint_trajectory"

    @classmethod
    def open_channel(cls, node: Node, topic: str) -> Channel:
        return GoalChannel(node, cls.load_type(), topic, explain_result)

    @classmethod
    def open_shadow(cls, node: Node, topic: str) -> Channel:
        return _Unwrapped(TopicChannel(node, JointTrajectory, shadow_topic(topic)))

    def _wrap(self, message: JointTrajectory) -> Any:
        return self.load_type().Goal(trajectory=message)


class _Unwrapped(TopicChannel):
    """A topic for what is inside the goals."""

    def __init__(self, inner: TopicChannel) -> None:
        self._inner = inner
        self.close = inner.close

    def send(self, goal: Any) -> None:
        self._inner.send(goal.trajectory)


def explain_result(result: Any) -> str:
    """What went wrong, empty for success."""
    if result.error_code == 0:
        return ""
    meaning = ERRORS.get(result.error_code, f"error {result.error_code}")
    return f"{meaning}: {result.error_string}" if result.error_string else meaning
