"""The topics a policy listens to: subscriptions that do nothing but store the newest message, and what hinders them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSCompatibility, QoSPolicyKind, QoSProfile, ReliabilityPolicy
from rclpy.qos import qos_check_compatible as check_qos
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState, PointCloud2

from phyai_core.types import PolicySpec
from phyai_ros.camera_view import info_topic
from phyai_ros.endpoints import create_subscription
from phyai_ros.mailbox import Mailbox
from phyai_ros.message_gaps import MessageGaps
from phyai_ros.settings import Settings

TELLS_MESSAGE_INFO = hasattr(Subscription, "CallbackType")  # not in Humble
OVERRIDABLE = (QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)


class Inputs(Mailbox):
    """A mailbox filled from the topics of a node. Messages are volatile and never queue: the newest one counts."""

    def __init__(self, node: Node, settings: Settings, spec: PolicySpec) -> None:
        """`settings` have been checked against `spec`. Raises ValueError if the state of `spec` makes no sense."""
        clock = node.get_clock()
        super().__init__(settings, spec, lambda: clock.now().nanoseconds, sim_time=clock.ros_time_is_active)
        self._node, self._sim_time = node, clock.ros_time_is_active
        self._subscriptions: list[Subscription] = []
        self.gaps = MessageGaps(settings.cameras.by_key[camera.key].topic for camera in spec.cameras)
        rules = settings.inputs
        self._subscribe(JointState, rules.joint_states_topic, rules.joint_states_qos, self.receive_joints)
        for key in (camera.key for camera in spec.cameras):
            camera = settings.cameras.by_key[key]
            kind = CompressedImage if camera.transport == "compressed" else Image
            self._subscribe(kind, camera.topic, camera.qos, partial(self.receive_image, key))
            if camera.undistort:
                topic, receive = info_topic(camera), partial(self.receive_info, key)
                self._subscribe(CameraInfo, topic, camera.qos, receive, with_info=False)

        for cloud, topic in zip(spec.clouds, rules.cloud_topics, strict=True):
            self._subscribe(PointCloud2, topic, rules.cloud_qos, partial(self.receive_cloud, cloud.key))

    @property
    def warnings(self) -> list[str]:
        """Topics that nobody publishes, and publishers whose quality of service keeps their messages from us.

        Asks the graph: for the thread of the ROS executor, a few times a second at most.
        """
        return [text for subscription in self._subscriptions for text in self._hindrances(subscription)]

    def close(self) -> None:
        """Unsubscribe."""
        while self._subscriptions:
            self._node.destroy_subscription(self._subscriptions.pop())

    def _subscribe(
        self, kind: type, topic: str, reliability: str, receive: Callable[..., None], with_info: bool = True
    ) -> None:
        policy = getattr(ReliabilityPolicy, reliability.upper(), ReliabilityPolicy.BEST_EFFORT)  # Humble has two
        qos = QoSProfile(depth=1, reliability=policy, durability=DurabilityPolicy.VOLATILE)
        callback = _WithInfo(partial(self._take, topic, receive)) if with_info and TELLS_MESSAGE_INFO else receive
        overridable = QoSOverridingOptions(OVERRIDABLE)
        subscription = create_subscription(self._node, kind, topic, callback, qos, qos_overriding_options=overridable)
        self._subscriptions.append(subscription)

    def _take(self, topic: str, receive: Callable[..., None], msg: Any, info: Mapping[str, Any]) -> None:
        self.gaps.note(topic, info)
        # The middleware stamps messages in wall time, which means nothing against a simulated clock.
        receive(msg, 0 if self._sim_time else info["source_timestamp"])

    def _hindrances(self, subscription: Subscription) -> list[str]:
        topic = subscription.topic_name
        publishers = self._node.get_publishers_info_by_topic(topic)
        if not publishers:
            return [f"nobody publishes {topic}"]
        wrong = []
        for publisher in publishers:
            compatibility, why = check_qos(publisher.qos_profile, subscription.qos_profile)
            if compatibility == QoSCompatibility.ERROR:
                reason = why.removeprefix("ERROR: ").rstrip("; ")
                wrong.append(f"messages of {publisher.node_name} on {topic} do not arrive: {reason}")
        return wrong


class _WithInfo:
    """A callback for message and message info. The EventsExecutor up to Kilted passes them as one pair."""

    __signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("msg", "info")]
    )

    def __init__(self, receive: Callable[[Any, Mapping[str, Any]], None]) -> None:
        self._receive = receive

    def __call__(self, *arguments: Any) -> None:
        self._receive(*(arguments if len(arguments) == 2 else arguments[0]))
