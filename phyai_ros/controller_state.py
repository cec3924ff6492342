"""The reference of a live joint_trajectory_controller, so that the first command continues it without a step.

The measured pose differs from it by the following error: gravity, friction, lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from phyai_core.types import FloatArray
from phyai_ros.endpoints import create_subscription
from phyai_ros.outputs.channels import load_interface

if TYPE_CHECKING:
    from rclpy.node import Node

FRESH_S = 0.5


class ControllerState:
    """Listens to a JointTrajectoryControllerState. `max_distance`: a reference further away is not believed."""

    def __init__(self, node: Node, topic: str, joint_names: tuple[str, ...], max_distance: float) -> None:
        """Raises ValueError where control_msgs is missing."""
        self._node, self._names, self._max_distance = node, joint_names, max_distance
        kind = load_interface("control_msgs.msg:JointTrajectoryControllerState", "controller.state_topic")
        self._newest: tuple[float, dict[str, float]] | None = None
        self._subscription = create_subscription(node, kind, topic, self._hear, 1)

    def close(self) -> None:
        self._node.destroy_subscription(self._subscription)

    def seed(self, measured: FloatArray) -> FloatArray:
        """Where to start from [A]: the controller's reference, joint by joint, where it is known and credible."""
        if self._newest is None or self._now_s() - self._newest[0] > FRESH_S:
            return measured
        reference = np.array([self._newest[1].get(name, np.nan) for name in self._names], np.float32)
        with np.errstate(invalid="ignore"):
            credible = np.abs(reference - measured) <= self._max_distance
        return np.where(credible, reference, measured)

    def _hear(self, message: Any) -> None:
        point = message.reference if hasattr(message, "reference") else message.desired  # Humble
        self._newest = (self._now_s(), dict(zip(message.joint_names, point.positions, strict=False)))

    def _now_s(self) -> float:
        return self._node.get_clock().now().nanoseconds * 1e-9
