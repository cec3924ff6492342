"""A small ROS node of a command, spun in its own thread, that can drive the lifecycle of another node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from phyai_ros.cli.errors import CommandFailed

if TYPE_CHECKING:
    from rclpy.client import Client

SLICE_S = 0.1  # how often a wait looks whether it is still worth while
TRANSITIONS = {"configure": Transition.TRANSITION_CONFIGURE, "activate": Transition.TRANSITION_ACTIVATE}


class GraphClient:
    """Use it as a context. `watch()` is called while waiting and raises when waiting has become pointless."""

    def __init__(self, name: str, watch: Callable[[], None]) -> None:
        self._watch = watch
        self._ending = threading.Event()
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node(name, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="graph_client", daemon=True)

    def __enter__(self) -> GraphClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        self._context.try_shutdown()

    def change_state(self, node_name: str, transition: str, timeout_s: float) -> None:
        """`transition` is "configure" or "activate". Raises CommandFailed where the node refuses or is too slow."""
        client = self.node.create_client(ChangeState, f"{node_name}/change_state")
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[transition]))
        try:
            response = self._call(client, request, timeout_s)
        finally:
            self.node.destroy_client(client)
        if response is None:
            raise CommandFailed(f"{node_name} did not {transition} within {timeout_s:g} s")
        if not response.success:
            raise CommandFailed(f"{node_name} refused to {transition}")

    def _call(self, client: Client, request: Any, timeout_s: float) -> Any | None:
        deadline = time.monotonic() + timeout_s
        while not client.wait_for_service(timeout_sec=SLICE_S):
            self._watch()
            if time.monotonic() > deadline:
                return None
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        while not answered.wait(SLICE_S):
            self._watch()
            if time.monotonic() > deadline:
                return None
        return future.result()

    def _spin(self) -> None:
        while not self._ending.is_set():
            self._executor.spin_once(timeout_sec=SLICE_S)
