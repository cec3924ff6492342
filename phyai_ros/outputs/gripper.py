"""Outputs to a gripper by action: GripperCommand and ParallelGripperCommand of control_msgs.

A gripper takes a target and goes there by itself, so a goal is sent only when the target has changed enough, and at
most a few times a second. Stopping sends nothing: the gripper keeps its last target, and what it holds.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from sensor_msgs.msg import JointState

from phyai_core.types import Action, Command, Fault, Reason
from phyai_ros.outputs.base import Array, Output, OutputConfig, Reference, check_position
from phyai_ros.outputs.channels import Channel, GoalChannel, TopicChannel, shadow_topic

if TYPE_CHECKING:
    from rclpy.node import Node

GOALS_PER_S = 5.0
DEADBAND = 0.002  # in the unit of the joint, rad or m


class GripperOutput(Output):
    """control_msgs/action/GripperCommand, one joint."""

    name = "gripper_command"
    interface = "control_msgs.action:GripperCommand"
    self_advancing = False
    any_clock = True
    default_topic = "gripper_controller/gripper_cmd"
    columns = (1,)

    def __init__(self, config: OutputConfig, publish: Callable[[Any], None], channel: Channel | None = None) -> None:
        super().__init__(config, publish, channel)
        self._ticks_between = max(1, math.ceil(1.0 / (GOALS_PER_S * config.dt_s)))
        self._target: Array = np.empty(0)
        self._sent: Array | None = None
        self._sent_tick = -math.inf

    @classmethod
    def open_channel(cls, node: Node, topic: str) -> Channel:
        return GoalChannel(node, cls.load_type(), topic, lambda result: "")  # stalled on an object is how it grasps

    @classmethod
    def open_shadow(cls, node: Node, topic: str) -> Channel:
        return _Targets(TopicChannel(node, JointState, shadow_topic(topic)))

    def start(self, position: Array, stamp_ns: int) -> None:
        self._target = check_position(position, len(self.config.joint_names))
        self._sent, self._sent_tick = None, -math.inf

    def update(self, command: Command, stamp_ns: int) -> Fault | None:
        if command.action is not Action.RUN:
            return None
        row = command.row.astype(float)
        if not np.isfinite(row).all():
            return Fault(Reason.BAD_CHUNK, f"row {command.index} of the chunk holds a number that is not finite")
        self._target = row
        last = self._sent
        due = command.tick - self._sent_tick >= self._ticks_between
        if due and (last is None or np.abs(row - last).max() > DEADBAND):
            self._sent, self._sent_tick = row, command.tick
            self._publish(self.to_goal(row))
        return None

    def to_goal(self, target: Array) -> Any:
        """The goal for a target [A]."""
        goal = self.load_type().Goal()
        goal.command.position = float(target[0])
        goal.command.max_effort = self.config.max_effort
        return goal

    def reference_at(self, tick: int) -> Reference:
        return Reference(self._target, np.zeros_like(self._target))

    @property
    def at_rest(self) -> bool:
        """A gripper is never waited for: with something in its fingers it does not reach its target."""
        return True


class ParallelGripperOutput(GripperOutput):
    """control_msgs/action/ParallelGripperCommand: named joints, as many as the controller has."""

    name = "parallel_gripper_command"
    interface = "control_msgs.action:ParallelGripperCommand"
    default_topic = "parallel_gripper_action_controller/gripper_cmd"
    columns = ()

    def to_goal(self, target: Array) -> Any:
        goal = self.load_type().Goal()
        goal.command.name = list(self.config.published_names)
        goal.command.position = array("d", target[self.config.order])
        if self.config.max_effort:
            goal.command.effort = array("d", [self.config.max_effort] * len(target))
        return goal


class _Targets(TopicChannel):
    """A topic for the targets inside the goals, as JointState without names where the goal has none."""

    def __init__(self, inner: TopicChannel) -> None:
        self._inner = inner
        self.close = inner.close

    def send(self, goal: Any) -> None:
        command = goal.command
        if not isinstance(command, JointState):
            command = JointState(position=array("d", [command.position]))
        self._inner.send(command)
