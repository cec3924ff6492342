"""A joint_trajectory_controller as a node, as far as its parameters go."""

from __future__ import annotations

from rclpy.node import Node
from rclpy.parameter import Parameter

from ros.fake_policy import JOINTS
from ros.policy_rig import PolicyRig


class FakeController(Node):
    """Declares what the real one has, and what `parameters` add or change; dots are written as double underscores."""

    def __init__(self, rig: PolicyRig, name: str = "joint_trajectory_controller", **parameters) -> None:
        super().__init__(name, context=rig.context)
        values = {"joints": list(JOINTS), "interpolate_from_desired_state": False, "cmd_timeout": 0.0, **parameters}
        for key, value in values.items():
            self.declare_parameter(key.replace("__", "."), value)
        self.declare_parameter("state_publish_rate", Parameter.Type.DOUBLE)  # never set, as optional ones
        rig.serve(self)
