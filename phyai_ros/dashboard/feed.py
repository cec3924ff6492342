"""What a viewer knows of a policy node, from its topics only.

Nothing spins: `poll` takes whatever has come since the last call, so that a viewer costs what it looks at and a closed
one costs nothing. Camera pictures are kept as they came; who wants one decodes it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState

from phyai_ros.endpoints import create_subscription
from phyai_ros.msg import ActionChunk, ControlTiming, PolicyMetadata, PolicyStatus

if TYPE_CHECKING:
    from rclpy.node import Node
    from rclpy.subscription import Subscription

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
TOPICS: dict[str, tuple[type, QoSProfile | int]] = {
    "metadata": (PolicyMetadata, LATCHED),
    "status": (PolicyStatus, 20),
    "timing": (ControlTiming, 50),
    "chunk": (ActionChunk, 5),
    "command": (JointState, 200),
}
TIMINGS, COMMANDS, EVENTS, SWAPS = 200, 500, 50, 100


@dataclass(frozen=True)
class Event:
    """The node began to do something else, or for another reason. `stamp_s` is ROS time."""

    stamp_s: float
    state: str
    reason: str
    text: str


@dataclass
class Seen:
    """The newest of each topic, and the last of those that a viewer draws."""

    metadata: PolicyMetadata | None = None
    status: PolicyStatus | None = None
    status_at_s: float = float("-inf")  # steady time
    chunk: ActionChunk | None = None
    timings: deque[ControlTiming] = field(default_factory=lambda: deque(maxlen=TIMINGS))
    timing_count: int = 0
    commands: deque[JointState] = field(default_factory=lambda: deque(maxlen=COMMANDS))
    command_count: int = 0
    swaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=SWAPS))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    images: dict[str, Any] = field(default_factory=dict)  # {camera key: message}


class Feed:
    """One thread at a time. `policy` is the name of the node that is watched, relative or full."""

    def __init__(self, node: Node, policy: str = "policy", with_images: bool = True) -> None:
        self._node, self.policy, self._with_images = node, policy, with_images
        self._subscriptions: dict[str, Subscription] = {}
        self._cameras: dict[str, Subscription] = {}
        self.seen = Seen()

    @property
    def is_open(self) -> bool:
        return bool(self._subscriptions)

    def open(self) -> None:
        """Begin to listen; what was seen before is forgotten."""
        self.seen = Seen()
        for name, (kind, qos) in TOPICS.items():
            self._subscriptions[name] = self._subscribe(kind, f"{self.policy}/{name}", qos)

    def close(self) -> None:
        """Stop listening."""
        for subscription in (*self._subscriptions.values(), *self._cameras.values()):
            self._node.destroy_subscription(subscription)
        self._subscriptions, self._cameras = {}, {}

    def poll(self) -> Seen:
        """Take in what has come."""
        seen = self.seen
        for message in self._take("metadata"):
            seen.metadata = message
            self._watch_cameras(message)
        for message in self._take("status"):
            self._note_status(message)
        for message in self._take("timing"):
            seen.timings.append(message)
            seen.timing_count += 1
        for message in self._take("chunk"):
            seen.chunk = message
            seen.swaps_s.append(stamp_s(message))
        for message in self._take("command"):
            seen.commands.append(message)
            seen.command_count += 1
        return seen

    def poll_image(self, key: str) -> Any | None:
        """The newest picture of a camera; None where there is none yet."""
        if key in self._cameras:
            for message in take(self._cameras[key]):
                self.seen.images[key] = message
        return self.seen.images.get(key)

    def _note_status(self, message: PolicyStatus) -> None:
        before, self.seen.status = self.seen.status, message
        self.seen.status_at_s = time.monotonic()
        if before is None or (before.state, before.reason) != (message.state, message.reason):
            self.seen.events.append(Event(stamp_s(message), message.state, message.reason, message.text))

    def _watch_cameras(self, metadata: PolicyMetadata) -> None:
        for subscription in self._cameras.values():
            self._node.destroy_subscription(subscription)
        self._cameras, self.seen.images = {}, {}
        if not self._with_images:
            return
        cameras = zip(metadata.camera_keys, metadata.camera_topics, metadata.camera_transports, strict=True)
        for key, topic, transport in cameras:
            kind = CompressedImage if transport == "compressed" else Image
            self._cameras[key] = self._subscribe(kind, topic, NEWEST)

    def _subscribe(self, kind: type, topic: str, qos: QoSProfile | int) -> Subscription:
        return create_subscription(self._node, kind, topic, _unused, qos)

    def _take(self, name: str) -> list[Any]:
        return take(self._subscriptions[name])


def take(subscription: Subscription) -> list[Any]:
    """Every message that waits, oldest first, without an executor."""
    messages = []
    with subscription.handle:
        while (taken := subscription.handle.take_message(subscription.msg_type, subscription.raw)) is not None:
            messages.append(taken[0])
    return messages


def stamp_s(message: Any) -> float:
    """Header stamp in seconds."""
    return message.header.stamp.sec + message.header.stamp.nanosec * 1e-9


def _unused(message: Any) -> None:
    """Never called: no executor serves these subscriptions."""
