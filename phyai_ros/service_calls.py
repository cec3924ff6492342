"""Service calls made while the node itself is busy with a transition: on a node and an executor of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile


class ServiceCaller:
    """Use as a context manager. Names are resolved, and remapped, as the node given would."""

    def __init__(self, node: Node) -> None:
        self._owner = node
        self._node = Node(
            f"{node.get_name()}_caller",
            context=node.context,
            namespace=node.get_namespace(),
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(self._node)

    def __enter__(self) -> ServiceCaller:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._node.destroy_node()

    def call(self, kind: type, name: str, request: Any, timeout_s: float) -> Any:
        """The response. Raises ValueError when nobody answers in time."""
        full_name = self._owner.resolve_service_name(name)
        client = self._node.create_client(kind, full_name)
        deadline_s = time.monotonic() + timeout_s
        try:
            if not client.wait_for_service(timeout_s):
                raise ValueError(f"nobody offers the service {full_name} ({timeout_s:g} s waited)")
            future = client.call_async(request)
            self._executor.spin_until_future_complete(future, max(0.0, deadline_s - time.monotonic()))
            if not future.done():
                raise ValueError(f"the service {full_name} did not answer within {timeout_s:g} s")
            return future.result()
        finally:
            self._node.destroy_client(client)

    def receive(self, kind: type, topic: str, qos: QoSProfile, timeout_s: float) -> Any:
        """The first message on a topic, as of a latched one. Raises ValueError when none comes in time."""
        full_name = self._owner.resolve_topic_name(topic)
        heard: list[Any] = []
        subscription = self._node.create_subscription(kind, full_name, heard.append, qos)
        try:
            self._spin_until(lambda: bool(heard), timeout_s)
        finally:
            self._node.destroy_subscription(subscription)
        if not heard:
            raise ValueError(f"no message came on {full_name} within {timeout_s:g} s")
        return heard[0]

    def _spin_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline_s:
            self._executor.spin_once(timeout_sec=0.02)
