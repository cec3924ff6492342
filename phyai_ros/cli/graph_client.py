"""A small ROS node of a command, spun in its own thread, that can drive the lifecycle of another node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rclpy
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from phyai_ros.cli.errors import CommandFailed

if TYPE_CHECKING:
    from rclpy.client import Client

SLICE_S = 0.1  # how often a wait looks whether it is still worth while
PATIENCE_S = 2.0  # after this an answer may have been lost, and the state is looked up
TRANSITIONS = {
    "configure": (Transition.TRANSITION_CONFIGURE, State.PRIMARY_STATE_INACTIVE),
    "activate": (Transition.TRANSITION_ACTIVATE, State.PRIMARY_STATE_ACTIVE),
}


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
        """`transition` is "configure" or "activate". Raises CommandFailed where the node refuses or is too slow.

        A service that has just appeared may answer before it knows its client, and such an answer is lost: the state of
        the node counts as an answer too.
        """
        transition_id, goal_id = TRANSITIONS[transition]
        deadline_s = time.monotonic() + timeout_s
        change = self.node.create_client(ChangeState, f"{node_name}/change_state")
        look = self.node.create_client(GetState, f"{node_name}/get_state")
        request = ChangeState.Request(transition=Transition(id=transition_id))
        try:
            answer = self._send(change, request, deadline_s)
            while time.monotonic() < deadline_s:
                if self._wait(answer, PATIENCE_S):
                    if not answer.result().success:
                        raise CommandFailed(f"{node_name} refused to {transition}")
                    return
                state = self._send(look, GetState.Request(), deadline_s)
                if self._wait(state, PATIENCE_S) and state.result().current_state.id == goal_id:
                    return
        finally:
            self.node.destroy_client(change)
            self.node.destroy_client(look)
        raise CommandFailed(f"{node_name} did not {transition} within {timeout_s:g} s")

    def _send(self, client: Client, request: Any, deadline_s: float) -> Future:
        """The answer to come; one that never comes where there is no service before the deadline."""
        while not client.wait_for_service(timeout_sec=SLICE_S):
            self._watch()
            if time.monotonic() > deadline_s:
                return Future()
        return client.call_async(request)

    def _wait(self, answer: Future, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        answered = threading.Event()
        answer.add_done_callback(lambda _: answered.set())
        while not answered.wait(SLICE_S):
            self._watch()
            if time.monotonic() > deadline_s:
                return False
        return True

    def _spin(self) -> None:
        while not self._ending.is_set():
            self._executor.spin_once(timeout_sec=SLICE_S)
