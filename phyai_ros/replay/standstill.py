"""What makes silence and equal pictures no fault: a policy that was switched off, a robot that stood still."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import numpy as np

from phyai_ros.replay.bag import BagMessage, Topic
from phyai_ros.replay.bag_types import NS_PER_S, stamp_of

JOINT_TYPE, SWITCH_TYPE = "sensor_msgs/msg/JointState", "std_msgs/msg/Bool"
STATUS_TYPE, METADATA_TYPE = "phyai_ros/msg/PolicyStatus", "phyai_ros/msg/PolicyMetadata"
OWN_TYPES = (STATUS_TYPE, METADATA_TYPE, "phyai_ros/msg/ActionChunk", "phyai_ros/msg/ControlTiming")
OFF_STATES = ("disabled", "inactive")
STILL = 1e-4  # rad or m; a joint that has not moved further since stands still
SWITCHING_NS, STARTING_NS = NS_PER_S // 4, NS_PER_S  # so much before and after it was off its topics may be silent


class Standstill:
    """Give it every message with `take`; it answers for stretches of the bag that are over."""

    def __init__(self, topics: Collection[Topic]) -> None:
        self._nodes = {topic.name.rpartition("/")[0] for topic in topics if topic.type in OWN_TYPES}
        self._outputs: dict[str, str] = {}  # {topic that a node sends to: the node}
        self._marks: dict[str, array] = defaultdict(lambda: array("q"))  # {node: when it was off, or was switched}
        self._off: dict[str, array] = defaultdict(lambda: array("q"))
        self._poses: dict[tuple[str, ...], Any] = {}
        self._moves_ns = array("q")  # stamps of joint states in which a joint has moved

    def take(self, message: BagMessage) -> None:
        node = message.topic.rpartition("/")[0]
        if message.type == JOINT_TYPE and not self.is_own(message.topic):
            self._note_joints(message)
        elif message.type == METADATA_TYPE:
            self._outputs |= dict.fromkeys(message.msg.output_topics, node)
        elif message.type == STATUS_TYPE and message.msg.state in OFF_STATES:
            self._note_switch(node, message.log_ns, off=True)
        elif message.type == SWITCH_TYPE and message.topic == f"{node}/enable" and node in self._nodes:
            self._note_switch(node, message.log_ns, off=not message.msg.data)

    def is_own(self, topic: str) -> bool:
        """Whether a policy node publishes it about itself, or hears it: no sensor."""
        return topic.rpartition("/")[0] in self._nodes

    def is_still(self, first_ns: int, last_ns: int) -> bool:
        """Whether joint states say that nothing moved between these stamps."""
        return bool(self._poses) and bisect_right(self._moves_ns, last_ns) == bisect_right(self._moves_ns, first_ns)

    def was_off(self, topic: str, first_ns: int, last_ns: int) -> bool:
        """Whether `topic` was silent between these log times because its policy was off from start to end."""
        node = self._outputs.get(topic, topic.rpartition("/")[0])
        if node not in self._nodes:
            return False
        off, marks = self._off[node], self._marks[node]
        began = bisect_left(off, first_ns - SWITCHING_NS) < bisect_right(off, first_ns + SWITCHING_NS)
        last = bisect_right(marks, last_ns) - 1
        return began and last >= 0 and marks[last] >= last_ns - STARTING_NS

    def _note_switch(self, node: str, log_ns: int, off: bool) -> None:
        self._marks[node].append(log_ns)
        if off:
            self._off[node].append(log_ns)

    def _note_joints(self, message: BagMessage) -> None:
        key = (message.topic, *message.msg.name)
        pose = np.asarray(message.msg.position, float)
        before = self._poses.get(key)
        if before is None or before.shape != pose.shape or not np.abs(pose - before).max(initial=0.0) < STILL:
            self._poses[key] = pose
            self._moves_ns.append(stamp_of(message.msg) or message.log_ns)
