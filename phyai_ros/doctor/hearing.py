"""Listens to the policy's inputs for a moment, as the node would, and keeps every header for judging."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState

from phyai_core.types import PolicySpec
from phyai_ros.endpoints import create_subscription
from phyai_ros.inputs import Inputs
from phyai_ros.settings import Settings

if TYPE_CHECKING:
    from rclpy.node import Node

SLICE_S = 0.05


@dataclass
class Heard:
    """Messages of one topic. Stamps and arrivals in ns of ROS time; `newest` is the last message."""

    topic: str
    kind: type
    stamps_ns: list[int] = field(default_factory=list)
    arrivals_ns: list[int] = field(default_factory=list)
    newest: Any = None

    @property
    def rate_hz(self) -> float:
        """Over the arrivals; 0 below two."""
        if len(self.arrivals_ns) < 2:
            return 0.0
        return (len(self.arrivals_ns) - 1) / max(1e-9, (self.arrivals_ns[-1] - self.arrivals_ns[0]) * 1e-9)


class Hearing:
    """Subscriptions of the doctor's own node: the node's `Inputs`, and one listener a topic that keeps headers."""

    def __init__(self, node: Node, settings: Settings, spec: PolicySpec) -> None:
        self._node, self._subscriptions = node, []
        self.inputs = Inputs(node, settings, spec)
        self.cameras: dict[str, Heard] = {}
        for key in (camera.key for camera in spec.cameras):
            camera = settings.cameras.by_key[key]
            kind = CompressedImage if camera.transport == "compressed" else Image
            self.cameras[key] = self._listen(kind, camera.topic)
        self.joints = self._listen(JointState, settings.inputs.joint_states_topic)

    def _listen(self, kind: type, topic: str) -> Heard:
        heard = Heard(self._node.resolve_topic_name(topic), kind)
        qos = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._subscriptions.append(create_subscription(self._node, kind, topic, partial(self._keep, heard), qos))
        return heard

    def _keep(self, heard: Heard, message: Any) -> None:
        stamp = message.header.stamp
        heard.stamps_ns.append(stamp.sec * 1_000_000_000 + stamp.nanosec)
        heard.arrivals_ns.append(self._node.get_clock().now().nanoseconds)
        heard.newest = message

    def run(self, seconds: float, discovery_s: float) -> None:
        """Wait until something was heard on every topic, at most `discovery_s`, then listen for `seconds`."""
        executor = SingleThreadedExecutor(context=self._node.context)
        executor.add_node(self._node)
        try:
            _spin(executor, discovery_s, lambda: all(h.arrivals_ns for h in (*self.cameras.values(), self.joints)))
            _spin(executor, seconds, lambda: False)
        finally:
            executor.remove_node(self._node)
            executor.shutdown()

    def close(self) -> None:
        self.inputs.close()
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)


def _spin(executor: SingleThreadedExecutor, seconds: float, done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not done():
        executor.spin_once(timeout_sec=SLICE_S)
