"""Whether the controllers behind the outputs are ours to command: checked or switched on activation, watched after it.

Uses controller_manager_msgs, which is needed only where controller.ownership is not none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from builtin_interfaces.msg import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile

from phyai_core.types import Fault, Reason
from phyai_ros.endpoints import create_subscription
from phyai_ros.outputs.channels import load_interface
from phyai_ros.service_calls import ServiceCaller
from phyai_ros.settings import Controller

if TYPE_CHECKING:
    from rclpy.node import Node

ACTIVE = "active"
NEEDED_BY = "controller.ownership"


class Ownership:
    """`controllers` are names as the controller manager knows them. `on_change` hears None, or why we may not move."""

    def __init__(
        self, node: Node, settings: Controller, controllers: Iterable[str], on_change: Callable[[Fault | None], None]
    ) -> None:
        """Raises ValueError where controller_manager_msgs is needed and missing."""
        self._node, self._settings, self._on_change = node, settings, on_change
        self._controllers = tuple(dict.fromkeys(controllers))
        self._activated: list[str] = []
        self._deactivated: list[str] = []
        self._subscription: Any = None
        if settings.ownership != "none":
            self._list = load_interface("controller_manager_msgs.srv:ListControllers", NEEDED_BY)
            self._switch = load_interface("controller_manager_msgs.srv:SwitchController", NEEDED_BY)

    def acquire(self) -> None:
        """Make sure that all controllers are active, and hear of every change. Raises ValueError saying what is not."""
        if self._settings.ownership == "none":
            return
        with ServiceCaller(self._node) as caller:
            states = self._read_states(caller)
            unknown = [name for name in self._controllers if name not in states]
            if unknown:
                raise ValueError(
                    f"{self._settings.manager} does not know the controller {', '.join(unknown)}; it has "
                    f"{', '.join(sorted(states)) or 'none'}. Load it, or correct output.topic or output.controller."
                )
            if self._settings.ownership == "switch":
                self._take(caller, states)
                states = self._read_states(caller)  # switching was once reported as done and was not
        inactive = [f"{name} is {states[name]}" for name in self._controllers if states[name] != ACTIVE]
        if inactive:
            raise ValueError(f"{', '.join(inactive)}; activate it, or set controller.ownership: switch.")
        self._on_change(None)
        self._watch()

    def release(self) -> None:
        """Give back what `acquire` took; to be called when the robot is at rest."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None
        activated, deactivated = self._activated, self._deactivated
        self._activated, self._deactivated = [], []
        if not (activated or deactivated):
            return
        try:
            with ServiceCaller(self._node) as caller:
                self._call_switch(caller, activate=deactivated, deactivate=activated)
        except ValueError as error:
            self._node.get_logger().error(f"cannot switch controllers back: {error}")

    def _take(self, caller: ServiceCaller, states: dict[str, str]) -> None:
        activate = [name for name in self._controllers if states[name] != ACTIVE]
        deactivate = [name for name in self._settings.replaces if states.get(name) == ACTIVE]
        if activate or deactivate:
            self._call_switch(caller, activate, deactivate)
            self._activated, self._deactivated = activate, deactivate

    def _call_switch(self, caller: ServiceCaller, activate: list[str], deactivate: list[str]) -> None:
        """All in one control cycle, or nothing."""
        timeout_s = self._settings.timeout_s
        request = self._switch.Request(
            activate_controllers=activate,
            deactivate_controllers=deactivate,
            strictness=self._switch.Request.STRICT,
            timeout=Duration(sec=int(timeout_s), nanosec=int(timeout_s % 1 * 1e9)),
        )
        response = caller.call(self._switch, f"{self._settings.manager}/switch_controller", request, 2 * timeout_s)
        if not response.ok:
            why = getattr(response, "message", "") or "no reason given"
            raise ValueError(f"cannot activate {activate} and deactivate {deactivate}: {why}")

    def _read_states(self, caller: ServiceCaller) -> dict[str, str]:
        name = f"{self._settings.manager}/list_controllers"
        answer = caller.call(self._list, name, self._list.Request(), self._settings.timeout_s)
        return {controller.name: controller.state for controller in answer.controller}

    def _watch(self) -> None:
        kind = load_interface("controller_manager_msgs.msg:ControllerManagerActivity", NEEDED_BY)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        topic = f"{self._settings.manager}/activity"
        self._subscription = create_subscription(self._node, kind, topic, self._hear, latched)

    def _hear(self, message: Any) -> None:
        states = {entry.name: entry.state.label for entry in message.controllers}
        lost = [f"{name} is {states.get(name, 'gone')}" for name in self._controllers if states.get(name) != ACTIVE]
        self._on_change(Fault(Reason.NOT_OWNER, f"{', '.join(lost)}: nothing is sent") if lost else None)
