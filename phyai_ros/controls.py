"""What people and other nodes may ask of a policy node: prompt, enable, e-stop, pause, reset, takeover.

Topics: ~/prompt, ~/enable, the e-stop. Services: ~/reset, ~/pause, ~/clear_estop, and ~/takeover in shadow mode.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool, Trigger

from phyai_core.types import Reason
from phyai_ros.endpoints import create_subscription
from phyai_ros.inputs import Inputs
from phyai_ros.pipeline import Pipeline
from phyai_ros.settings import Settings

if TYPE_CHECKING:
    from rclpy.node import Node

INACTIVE = "the node is not active"


class Controls:
    """Endpoints of one configuration. An e-stop counts always, everything else while `is_active`."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        inputs: Inputs,
        pipeline: Pipeline,
        is_active: Callable[[], bool],
        on_reset: Callable[[], None],
    ) -> None:
        self._node, self._inputs, self._pipeline, self._is_active = node, inputs, pipeline, is_active
        self._on_reset = on_reset
        with ExitStack() as made:
            self._made = made
            self._hear_prompt()
            self._hear("~/enable", self._enable)
            self._hear(settings.stop.estop_topic, lambda message: pipeline.press_estop(message.data))
            self._offer(Trigger, "~/reset", self._reset)
            self._offer(Trigger, "~/clear_estop", self._clear_estop)
            self._offer(SetBool, "~/pause", self._pause)
            if settings.shadow:
                self._offer(SetBool, "~/takeover", self._take_over)
            self._made = made.pop_all()

    def close(self) -> None:
        """Stop listening."""
        self._made.close()

    def _hear_prompt(self) -> None:
        """A latched prompt is heard whether it was sent before or after us; an old enable must never be."""
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        for qos in (latched, QoSProfile(depth=1)):
            prompt = create_subscription(self._node, String, "~/prompt", lambda m: self.set_prompt(m.data), qos)
            self._made.callback(self._node.destroy_subscription, prompt)

    def _hear(self, topic: str, callback: Callable[[Bool], None]) -> None:
        subscription = create_subscription(self._node, Bool, topic, callback, QoSProfile(depth=1))
        self._made.callback(self._node.destroy_subscription, subscription)

    def _offer(self, kind: type, name: str, answer: Callable[[Any], str]) -> None:
        """`answer(request)` gives why not, or an empty text."""

        def respond(request: Any, response: Any) -> Any:
            refusal = answer(request)
            response.success, response.message = not refusal, refusal or "done"
            return response

        self._made.callback(self._node.destroy_service, self._node.create_service(kind, name, respond))

    def set_prompt(self, text: str) -> None:
        """The task in words, from the next launch on."""
        self._inputs.prompt = text

    def _enable(self, message: Bool) -> None:
        if self._is_active():
            self._pipeline.enable(message.data)

    def _reset(self, request: Trigger.Request) -> str:
        if not self._is_active():
            return INACTIVE
        self._on_reset()
        self._pipeline.reset(Reason.RESET, "reset was requested")
        return ""

    def _clear_estop(self, request: Trigger.Request) -> str:
        return self._pipeline.clear_estop()

    def _pause(self, request: SetBool.Request) -> str:
        if not self._is_active():
            return INACTIVE
        self._pipeline.pause(request.data)
        return ""

    def _take_over(self, request: SetBool.Request) -> str:
        if not self._is_active():
            return INACTIVE
        self._pipeline.take_over(request.data)
        return ""
