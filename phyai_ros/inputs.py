"""The topics a policy listens to: subscriptions that do nothing but store the newest message, and what hinders them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSPolicyKind, QoSProfile, ReliabilityPolicy, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image, JointState

from phyai_core.types import PolicySpec
from phyai_ros.mailbox import InputSet, Mailbox, Sample
from phyai_ros.settings import Settings

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

__all__ = ["InputSet", "Inputs", "Sample"]

TELLS_PUBLISH_TIME = hasattr(Subscription, "CallbackType")  # not in Humble
OVERRIDABLE = (QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)


class Inputs(Mailbox):
    """A mailbox filled from the topics of a node. Messages are volatile and never queue: the newest one counts."""

    def __init__(self, node: Node, settings: Settings, spec: PolicySpec) -> None:
        """`settings` have been checked against `spec`. Raises ValueError if the state of `spec` makes no sense."""
        clock = node.get_clock()
        super().__init__(settings, spec, lambda: clock.now().nanoseconds, sim_time=clock.ros_time_is_active)
        self._node = node
        self._qos_warnings: dict[str, str] = {}
        rules = settings.inputs
        self._subscriptions = [
            self._subscribe(JointState, rules.joint_states_topic, rules.joint_states_qos, self.receive_joints)
        ]
        for key in (camera.key for camera in spec.cameras):
            camera = settings.cameras.by_key[key]
            kind = CompressedImage if camera.transport == "compressed" else Image
            receive = partial(self.receive_image, key)
            self._subscriptions.append(self._subscribe(kind, camera.topic, camera.qos, receive))

    @property
    def warnings(self) -> list[str]:
        """Sentences about publishers whose quality of service does not fit ours, and topics nobody publishes."""
        silent = [f"{topic} has no publisher" for topic in self.received if not self._node.count_publishers(topic)]
        return [*self._qos_warnings.values(), *silent]

    def close(self) -> None:
        """Unsubscribe."""
        while self._subscriptions:
            self._node.destroy_subscription(self._subscriptions.pop())

    def _subscribe(self, kind: type, topic: str, reliability: str, receive: Callable[..., None]) -> Any:
        qos = QoSProfile(
            depth=1,
            reliability=ReliabilityPolicy[reliability.upper()],
            durability=DurabilityPolicy.VOLATILE,
        )
        return self._node.create_subscription(
            kind,
            topic,
            self._with_publish_time(receive),
            qos,
            event_callbacks=SubscriptionEventCallbacks(incompatible_qos=partial(self._note_mismatch, topic)),
            qos_overriding_options=QoSOverridingOptions(OVERRIDABLE),
        )

    def _with_publish_time(self, receive: Callable[..., None]) -> Callable[..., None]:
        """The middleware stamps messages in wall time, which means nothing against a simulated clock."""
        if not TELLS_PUBLISH_TIME or self._node.get_clock().ros_time_is_active:
            return receive
        return lambda msg, info: receive(msg, info["source_timestamp"])

    def _note_mismatch(self, topic: str, event: Any) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind).lower()
        text = f"a publisher on {topic} offers another {policy} than is asked for, so its messages do not arrive"
        self._qos_warnings[topic] = f"{text}; see the qos parameter of this input"
        self._node.get_logger().warning(self._qos_warnings[topic])
