"""Output to a forward_command_controller (or JointGroupPositionController): plain position commands at a steady rate.

The controller passes on the last value for ever, and switches off when a message has another length than its joints.
"""

from __future__ import annotations

from array import array

from std_msgs.msg import Float64MultiArray

from phyai_ros.outputs.base import Array
from phyai_ros.outputs.streaming import StreamingOutput


class ForwardCommandOutput(StreamingOutput):
    """Positions in the controller's order; the message carries no names."""

    name = "forward_command"
    interface = "std_msgs.msg:Float64MultiArray"
    default_topic = "forward_position_controller/commands"

    def to_message(self, position: Array, velocity: Array, stamp_ns: int) -> Float64MultiArray:
        return Float64MultiArray(data=array("d", position))
