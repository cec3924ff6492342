"""Asks MoveIt about states of the running chunk, a few a second, and stops the robot before one that collides.

No real-time check: what lies nearer than the answer takes is executed unseen. A service that does not answer stops
nothing; it is told in the diagnostics.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from sensor_msgs.msg import JointState

from phyai_core.types import Action, Fault, Reason
from phyai_ros.outputs.channels import load_interface
from phyai_ros.pipeline import Pipeline
from phyai_ros.settings import Collision

if TYPE_CHECKING:
    from rclpy.node import Node

AHEAD = (0.25, 0.5, 0.75, 1.0)  # of the rows left, in turn


class CollisionCheck:
    """Made only where `settings.service` is set. `warnings` holds what keeps it from checking."""

    def __init__(self, node: Node, settings: Collision, joint_names: tuple[str, ...], pipeline: Pipeline) -> None:
        """Raises ValueError where moveit_msgs is missing."""
        self._node, self._settings, self._names, self._pipeline = node, settings, joint_names, pipeline
        self._kind = load_interface("moveit_msgs.srv:GetStateValidity", "collision.service")
        self._client = node.create_client(self._kind, settings.service)
        self._asked: Any = None
        self._turn = self.checked = 0

    def ask(self) -> None:
        """Ask about the next state, unless the last answer is still out. For a timer of the ROS executor."""
        row = self._choose_row()
        if row is None or not self._client.service_is_ready() or (self._asked and not self._asked[1].done()):
            return
        request = self._kind.Request(group_name=self._settings.group)
        request.robot_state.joint_state = JointState(name=list(self._names), position=array("d", row[1]))
        request.robot_state.is_diff = True  # the planning scene knows the joints that the policy does not move
        epoch = self._pipeline.record.command.epoch
        future = self._client.call_async(request)
        self._asked = (row[0], future)
        future.add_done_callback(lambda done: self._judge(row[0], epoch, done))

    @property
    def warnings(self) -> list[str]:
        """Why nothing is checked, if so."""
        return [] if self._client.service_is_ready() else [f"nobody offers {self._client.srv_name}: no collision check"]

    def close(self) -> None:
        self._node.destroy_client(self._client)

    def _choose_row(self) -> tuple[int, Any] | None:
        """(row, joint positions [A]) of the running chunk, nearer and further in turn."""
        record = self._pipeline.record
        if record is None or record.command.action is not Action.RUN:
            return None
        command = record.command
        left = len(command.chunk.actions) - 1 - command.index
        self._turn = (self._turn + 1) % len(AHEAD)
        row = command.index + round(left * AHEAD[self._turn])
        return row, command.chunk.actions[row]

    def _judge(self, row: int, epoch: int, future: Any) -> None:
        self.checked += 1
        answer = future.result()
        record = self._pipeline.record
        if answer is None or answer.valid or record is None or record.command.epoch != epoch:
            return
        bodies = "; ".join(f"{c.contact_body_1} and {c.contact_body_2}" for c in answer.contacts[:3])
        text = f"row {row} of the chunk is not a valid state" + (f": {bodies}" if bodies else "")
        self._pipeline.stop_for(Fault(Reason.COLLISION, text))
