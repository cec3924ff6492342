"""Publishers and subscriptions that are destroyed while the node lives on.

They carry no event callbacks: destroying an endpoint that has some can crash rclpy's EventsExecutor (ros2/rclpy#1644).
Whoever wants to know about unfitting quality of service asks the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks


def create_publisher(node: Node, kind: type, topic: str, qos: QoSProfile | int = 10) -> Publisher:
    silent = PublisherEventCallbacks(use_default_callbacks=False)
    return node.create_publisher(kind, topic, qos, event_callbacks=silent)


def create_subscription(
    node: Node, kind: type, topic: str, callback: Callable[..., None], qos: QoSProfile | int, **options: Any
) -> Subscription:
    silent = SubscriptionEventCallbacks(use_default_callbacks=False)
    return node.create_subscription(kind, topic, callback, qos, event_callbacks=silent, **options)
