"""The node that serves the dashboard: a process of its own beside the policy node, idle while nobody looks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import rclpy
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from phyai_ros.dashboard.feed import Feed
from phyai_ros.dashboard.server import DashboardServer
from phyai_ros.spinning import stop_on_signals

HOST, PORT = "127.0.0.1", 8080
PARAMETERS = {
    "policy": ("policy", "Name of the policy node, relative to our namespace or full"),
    "host": (HOST, "Address to serve on; 0.0.0.0 lets the whole network look, without a password"),
    "port": (PORT, "Port; 0: a free one"),
}


def make_node() -> Node:
    """A node whose parameters are read once; it answers no services, since nothing spins it."""
    node = Node("dashboard", start_parameter_services=False)
    for name, (default, description) in PARAMETERS.items():
        node.declare_parameter(name, default, ParameterDescriptor(description=description, read_only=True))
    return node


def serve(feed: Feed, host: str, port: int, stopping: threading.Event, announce: Callable[[str], None]) -> None:
    """Serve until `stopping` is set. Raises ValueError where the address cannot be had."""
    server = DashboardServer(feed, host, port)
    thread = threading.Thread(target=server.serve_forever, name="dashboard", daemon=True)
    thread.start()
    announce(server.url)
    try:
        stopping.wait()
    finally:
        server.shutdown()
        thread.join()
        server.close()


def main(args: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM. Exit code 0, or 1 with one sentence."""
    stopping = threading.Event()
    stop_on_signals(stopping)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    node = make_node()
    policy, host, port = (node.get_parameter(name).value for name in PARAMETERS)
    namespace = node.get_namespace().rstrip("/")
    full_name = policy if policy.startswith("/") else f"{namespace}/{policy}"
    try:
        feed = Feed(node, full_name)
        serve(feed, host, port, stopping, lambda url: node.get_logger().info(f"dashboard of {full_name}: {url}"))
    except ValueError as error:
        node.get_logger().error(f"cannot serve: {error}")
        return 1
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
