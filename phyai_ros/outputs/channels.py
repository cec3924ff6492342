"""How the messages of an output leave the node: on a topic, or as goals of an action.

An output only calls `send`; what comes back from an action server is kept until the control thread asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from phyai_core.types import Fault, Reason

if TYPE_CHECKING:
    from rclpy.node import Node

    from phyai_ros.outputs.base import Output

SHADOW = "~/shadow/"


class Channel(Protocol):
    """Where messages go. `send` never blocks; `take_fault` gives each complaint of the other side once."""

    def send(self, message: Any) -> None: ...

    def take_fault(self) -> Fault | None: ...

    def close(self) -> None: ...


def load_interface(path: str, needed_by: str) -> Any:
    """The interface `package.kind:Name`. Raises ValueError with the fix where its package is not installed."""
    module, name = path.split(":")
    package = module.split(".")[0]
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        debian = package.replace("_", "-")
        raise ValueError(
            f"{needed_by} needs {module}.{name}, which is not installed; "
            f"install it (apt install ros-$ROS_DISTRO-{debian}) or choose another setting."
        ) from error


class TopicChannel:
    """A publisher. Nothing comes back."""

    def __init__(self, node: Node, kind: type, topic: str) -> None:
        from phyai_ros.endpoints import create_publisher

        self._node, self._publisher = node, create_publisher(node, kind, topic)
        self.send: Callable[[Any], None] = self._publisher.publish

    def take_fault(self) -> Fault | None:
        return None

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)


class GoalChannel:
    """Goals of one action server. A new goal replaces the running one; only the newest can be at fault.

    `explain(result)` says what is wrong with the result of a goal that ended by itself, or gives an empty text.
    """

    def __init__(self, node: Node, kind: type, name: str, explain: Callable[[Any], str]) -> None:
        from rclpy.action import ActionClient

        self._name, self._explain = name, explain
        self._client = ActionClient(node, kind, name)
        self._lock = threading.Lock()
        self._newest = 0
        self._fault: Fault | None = None

    def send(self, goal: Any) -> None:
        if not self._client.server_is_ready():
            self._complain(self._newest, "there is no action server")
            return
        with self._lock:
            self._newest += 1
            number = self._newest
        self._client.send_goal_async(goal).add_done_callback(lambda future: self._judge_answer(number, future))

    def take_fault(self) -> Fault | None:
        with self._lock:
            fault, self._fault = self._fault, None
        return fault

    def close(self) -> None:
        self._client.destroy()

    def _judge_answer(self, number: int, future: Any) -> None:
        handle = future.result()
        if not handle.accepted:
            self._complain(number, "the goal was rejected")
            return
        handle.get_result_async().add_done_callback(lambda done: self._judge_result(number, done.result().result))

    def _judge_result(self, number: int, result: Any) -> None:
        problem = self._explain(result)
        if problem:
            self._complain(number, problem)

    def _complain(self, number: int, problem: str) -> None:
        with self._lock:
            if number == self._newest:
                self._fault = Fault(Reason.CONTROLLER, f"{self._name}: {problem}")


class ShadowChannel:
    """Sends to a topic below ~/shadow/ until `live` is set, then to the real channel, and back."""

    def __init__(self, real: Channel, shadow: Channel) -> None:
        self._real, self._shadow = real, shadow
        self.live = False

    def send(self, message: Any) -> None:
        (self._real if self.live else self._shadow).send(message)

    def take_fault(self) -> Fault | None:
        return self._real.take_fault() if self.live else None

    def close(self) -> None:
        self._real.close()
        self._shadow.close()


def shadow_channels(output: Output) -> list[ShadowChannel]:
    """The channels of an output, or of its parts, that can be switched."""
    outputs = [part.output for part in getattr(output, "parts", ())] or [output]
    return [each.channel for each in outputs if isinstance(each.channel, ShadowChannel)]


def shadow_topic(topic: str) -> str:
    """Where the messages for `topic` go in shadow mode."""
    return SHADOW + topic.removeprefix("~/").strip("/")
