"""Records topics of a live graph into a bag, with the exact bytes that came over the wire. Needs rclpy."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from phyai_ros.replay.bag_writer import BagWriter, type_name

if TYPE_CHECKING:
    from rclpy.node import Node

DEPTH = 200


class TopicRecorder:
    """Writes what comes on `topics` {name: (message class, latched)} until it is closed; use as a context manager.

    Callbacks run in the thread that spins `node`.
    """

    def __init__(self, node: Node, path: Path, topics: Mapping[str, tuple[type, bool]]) -> None:
        self._node, self._lock = node, threading.Lock()
        self._writer: BagWriter | None = BagWriter(path)
        self._subscriptions = []
        for name, (kind, latched) in topics.items():
            durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
            qos = QoSProfile(depth=DEPTH, reliability=ReliabilityPolicy.RELIABLE, durability=durability)
            keep = partial(self._keep, node.resolve_topic_name(name), type_name(kind))
            self._subscriptions.append(node.create_subscription(kind, name, keep, qos, raw=True))

    def __enter__(self) -> TopicRecorder:
        return self

    def __exit__(self, *failure: object) -> None:
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        with self._lock:
            writer, self._writer = self._writer, None
        writer.__exit__(None, None, None)  # what was recorded before a failure is worth keeping

    def _keep(self, topic: str, kind: str, raw: bytes) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.write_raw(topic, kind, time.time_ns(), raw)
