"""A ROS graph of its own for one test: a free domain, localhost only, its own context, waits with a bound."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from phyai_ros.spinning import make_executor

FIRST_DOMAIN, LAST_DOMAIN = 20, 101  # higher ones reach into the ports that systems hand out


class Domain:
    """A domain number that no other test process on this machine holds."""

    def __init__(self) -> None:
        for number in _domains():
            lock = (Path(tempfile.gettempdir()) / f"phyai_ros_test_domain_{number}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            self.number, self._lock = number, lock
            return
        raise RuntimeError(f"all ROS domains from {FIRST_DOMAIN} to {LAST_DOMAIN} are in use by tests")

    def close(self) -> None:
        """Give the number back."""
        self._lock.close()


class Graph:
    """Nodes of one test, spun by the test itself. `environment` is what a child process needs to join in."""

    def __init__(self, domain: int, log_dir: Path) -> None:
        self.environment = {**os.environ, **make_environment(domain, log_dir)}
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        self._executor = make_executor(self.context)
        self._nodes: list[Node] = []

    def node(self, name: str, kind: Callable[..., Node] = Node, **options: Any) -> Node:
        """A node that `spin_until` serves."""
        return self.add(kind(name, context=self.context, **options))

    def add(self, node: Node) -> Node:
        """Let `spin_until` serve a node made elsewhere, and destroy it at the end."""
        self._nodes.append(node)
        self._executor.add_node(node)
        return node

    def spin_until(self, condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "the condition") -> Any:
        """Serve callbacks until `condition` gives something true, and return that; fail after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not (result := condition()):
            assert time.monotonic() < deadline_s, f"{what} did not come true within {timeout_s:g} s"
            self._executor.spin_once(timeout_sec=0.02)
        return result

    def close(self) -> None:
        """Destroy the nodes and leave the graph.

        A lifecycle node answers until it is collected: its services belong to it and it to them.
        """
        self._executor.shutdown()
        for node in self._nodes:
            node.destroy_node()
        self._nodes.clear()
        rclpy.try_shutdown(context=self.context)
        gc.collect()


def make_environment(domain: int, log_dir: Path) -> dict[str, str]:
    """Variables that keep a process in its own corner of the network and of the disk."""
    variables = {"ROS_DOMAIN_ID": str(domain), "ROS_LOG_DIR": str(log_dir)}
    if os.environ.get("ROS_DISTRO") == "humble":
        variables["ROS_LOCALHOST_ONLY"] = "1"
    else:
        variables["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    if (Path(sys.prefix) / "share/ament_index").is_dir() and "AMENT_PREFIX_PATH" not in os.environ:
        variables["AMENT_PREFIX_PATH"] = sys.prefix
    return variables


def _domains() -> list[int]:
    """Every domain once, from one that depends on the process, so that tests in parallel rarely meet."""
    numbers = list(range(FIRST_DOMAIN, LAST_DOMAIN + 1))
    start = os.getpid() % len(numbers)
    return numbers[start:] + numbers[:start]
