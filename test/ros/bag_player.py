"""Plays a bag over real topics with /clock, as `ros2 bag play --clock` does: any rate, pauses, again from the start.

It waits for the node where the machine is slow, so that a test shows what the node decides and not how fast it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message
from rosbags.rosbag2 import Reader
from rosgraph_msgs.msg import Clock

from ros.graph import Graph

STEP_NS = 10_000_000


class BagPlayer:
    """Publishes every message of `path` at its bag time. `settled(sent, now_ns)` says that the node has caught up with
    so many messages and this clock."""

    def __init__(self, graph: Graph, path: Path, settled: Callable[[int, int], bool]) -> None:
        self._graph, self._settled, self._sent = graph, settled, 0
        self._node = graph.node("bag_player")
        self._clock = self._node.create_publisher(Clock, "/clock", 10)
        self._messages: list[tuple[int, Any, Any]] = []
        with Reader(path) as reader:
            self.start_ns = reader.start_time
            publishers = {}
            for connection, log_ns, raw in reader.messages():
                kind = load_class(connection.msgtype)
                if connection.topic not in publishers:
                    publishers[connection.topic] = self._node.create_publisher(kind, connection.topic, 10)
                self._messages.append((log_ns, publishers[connection.topic], deserialize_message(bytes(raw), kind)))

    def set_clock(self, now_ns: int) -> None:
        self._clock.publish(Clock(clock=Time(sec=now_ns // 10**9, nanosec=now_ns % 10**9)))

    def play(self, rate: float, pause_at_s: float = -1.0, pause_s: float = 0.0) -> None:
        """From the start to the end; `pause_s` of wall time the clock stands at the bag time `pause_at_s`."""
        now_ns, left = self.start_ns, list(self._messages)
        while left:
            due, left = [m for m in left if m[0] <= now_ns], [m for m in left if m[0] > now_ns]
            for _, publisher, message in due:
                publisher.publish(message)
                self._sent += 1
                self._catch_up(0)
            self.set_clock(now_ns)
            self._catch_up(now_ns)
            if abs(now_ns - self.start_ns - pause_at_s * 1e9) < STEP_NS / 2:
                self._wait(pause_s)
            self._wait(STEP_NS * 1e-9 / rate)
            now_ns += STEP_NS

    def _catch_up(self, now_ns: int) -> None:
        self._graph.spin_until(lambda: self._settled(self._sent, now_ns), 60.0, f"catching up with {now_ns}")

    def _wait(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._graph.spin_until(lambda: True)
            time.sleep(min(left_s, 0.01))


def load_class(name: str) -> type:
    """The message class of package/msg/Name."""
    package, _, short = name.split("/")
    return getattr(import_module(f"{package}.msg"), short)
