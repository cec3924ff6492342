"""Outputs to moveit_servo: joint jog, twist and pose commands, stamped now, each one step of the policy.

Servo drops commands whose stamp is older than its incoming_command_timeout against its own clock, smooths what it gets
and checks collisions and singularities. Select the command type in servo (~/switch_command_type) to match.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from std_msgs.msg import Header

from phyai_core.clock import NS_PER_S
from phyai_core.types import Command, Fault, Reason
from phyai_ros.outputs.base import Array, Reference
from phyai_ros.outputs.streaming import StreamingOutput


def _header(stamp_ns: int, frame: str) -> Header:
    return Header(stamp=Time(sec=stamp_ns // NS_PER_S, nanosec=stamp_ns % NS_PER_S), frame_id=frame)


class JointJogOutput(StreamingOutput):
    """control_msgs/JointJog with velocities, for policies whose actions are joint positions (speed_units in servo)."""

    name = "servo_joint_jog"
    interface = "control_msgs.msg:JointJog"
    default_topic = "servo_node/delta_joint_cmds"

    def to_message(self, position: Array, velocity: Array, stamp_ns: int) -> Any:
        return self.load_type()(
            header=_header(stamp_ns, self.config.frame),
            joint_names=list(self.config.published_names),
            velocities=array("d", velocity),
            duration=self._sub_dt_s,
        )


class TwistOutput(StreamingOutput):
    """geometry_msgs/TwistStamped for policies whose six actions are a twist: linear x y z, then angular x y z.

    A row is a velocity here: braking takes it to zero within max_acceleration, and zero is what holding repeats.
    """

    name = "servo_twist"
    interface = "geometry_msgs.msg:TwistStamped"
    default_topic = "servo_node/delta_twist_cmds"
    columns = (6,)
    moves_joints = False

    def to_message(self, position: Array, velocity: Array, stamp_ns: int) -> Any:
        message = self.load_type()(header=_header(stamp_ns, self.config.frame))
        linear, angular = message.twist.linear, message.twist.angular
        linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = map(float, position)
        return message

    def reference_at(self, tick: int) -> Reference:
        return Reference(self._sent, np.zeros_like(self._sent))

    def _brake(self, hold: bool) -> None:
        ever_ran = self._running or self._holding or bool(self._queue)
        if self._running:
            steps = max(1, int(np.ceil(np.max(np.abs(self._sent) / self._max_acceleration) / self._sub_dt_s - 1e-9)))
            self._queue = [self._sent * (1.0 - (i + 1) / steps) for i in range(steps)]
        self._running, self._holding = False, hold and ever_ran


class PoseOutput(StreamingOutput):
    """geometry_msgs/PoseStamped for policies whose seven actions are a pose: x y z, then the quaternion x y z w.

    Nothing measures a pose here, so the first one is not checked: servo limits the way to it. Braking stays at the last
    pose sent, and servo comes to rest there.
    """

    name = "servo_pose"
    interface = "geometry_msgs.msg:PoseStamped"
    default_topic = "servo_node/pose_target_cmds"
    columns = (7,)
    moves_joints = False

    def to_message(self, position: Array, velocity: Array, stamp_ns: int) -> Any:
        message = self.load_type()(header=_header(stamp_ns, self.config.frame))
        place, turn = message.pose.position, message.pose.orientation
        place.x, place.y, place.z = map(float, position[:3])
        turn.x, turn.y, turn.z, turn.w = map(float, position[3:] / np.linalg.norm(position[3:]))
        return message

    def _aim(self, command: Command) -> Fault | None:
        row = command.row.astype(float)
        if not np.isfinite(row).all() or np.linalg.norm(row[self.config.order][3:]) < 0.5:
            return Fault(Reason.BAD_CHUNK, f"row {command.index} of the chunk is not a pose: {row.tolist()}")
        self._queue = [row] * self.sub_ticks
        self._velocity = np.zeros_like(row)
        self._running, self._holding = True, False
        return None

    def _brake(self, hold: bool) -> None:
        ever_ran = self._running or self._holding
        self._queue = []
        self._running, self._holding = False, hold and ever_ran
