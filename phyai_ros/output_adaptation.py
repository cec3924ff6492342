"""Fits a built output to the live controllers behind it: their joint order, and their way with new trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phyai_ros.controller_facts import ControllerFacts, order_joints, read_facts
from phyai_ros.outputs import load_output
from phyai_ros.outputs.base import Output
from phyai_ros.outputs.combined import CombinedOutput
from phyai_ros.robot_checks import named_outputs
from phyai_ros.service_calls import ServiceCaller
from phyai_ros.settings import Output as OutputSettings
from phyai_ros.settings import Settings

if TYPE_CHECKING:
    from rclpy.node import Node


def controller_names(settings: Settings) -> dict[str, str]:
    """{parameter group of an output: name of the controller behind it}."""
    return {
        group: output.controller or (output.topic or load_output(output.type).default_topic).rpartition("/")[0]
        for group, output in named_outputs(settings).items()
    }


def adapt_output(node: Node, output: Output, settings: Settings) -> list[str]:
    """Ask each controller for its joints and style and follow it. Gives remarks for the user.

    Raises ValueError where a controller moves other joints, or where it has to answer and does not: with
    controller.ownership other than none.
    """
    remarks: list[str] = []
    parts = {part.name: part.output for part in output.parts} if isinstance(output, CombinedOutput) else {"": output}
    names = controller_names(settings)
    with ServiceCaller(node) as caller:
        for group, config in named_outputs(settings).items():
            part = parts.get(group, output)
            if not asks_controller(config):
                continue
            try:
                facts = read_facts(caller, names[group], settings.controller.timeout_s)
            except ValueError as error:
                if settings.controller.ownership != "none":
                    raise
                remarks.append(f"{group}.profile: as splice, unchecked: {error}")
                continue
            remarks += follow_facts(part, config, facts)
    return remarks


def asks_controller(output: OutputSettings) -> bool:
    """Whether the controller's parameters decide anything."""
    return output.profile == "auto" and (output.type.endswith("trajectory") or output.type == "forward_command")


def follow_facts(output: Output, settings: OutputSettings, facts: ControllerFacts) -> list[str]:
    """Take over the controller's joint order and, for profile auto, its style."""
    changes: dict[str, Any] = {"controller_joints": order_joints(facts, output.config.joint_names)}
    if settings.type.endswith("trajectory"):
        changes["profile"] = facts.profile
    output.reconfigure(**changes)
    return facts.find_warnings(output.config.dt_s)
