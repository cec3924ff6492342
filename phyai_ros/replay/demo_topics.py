"""The topics of the demo, as they are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, String
from trajectory_msgs.msg import JointTrajectory

from phyai_ros.msg import ActionChunk, ControlTiming, PolicyMetadata, PolicyStatus, TickTrace
from phyai_ros.replay.recorder import TopicRecorder

if TYPE_CHECKING:
    from rclpy.node import Node

TOPICS: dict[str, tuple[type, bool]] = {  # {name: (message class, latched)}
    "camera/front/image_raw": (Image, False),
    "joint_states": (JointState, False),
    "policy/enable": (Bool, True),
    "policy/prompt": (String, False),
    "policy/command": (JointState, False),
    "policy/chunk": (ActionChunk, False),
    "policy/timing": (ControlTiming, False),
    "policy/ticks": (TickTrace, False),
    "policy/status": (PolicyStatus, False),
    "policy/metadata": (PolicyMetadata, True),
    "joint_trajectory_controller/joint_trajectory": (JointTrajectory, False),
    "sim_robot/episode": (String, True),
}


def record_demo(node: Node, path: Path) -> TopicRecorder:
    """Record the demo that runs on the graph of `node`. Raises ValueError where `path` exists."""
    return TopicRecorder(node, path, TOPICS)
