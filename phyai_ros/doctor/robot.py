"""What is behind the policy's outputs: who listens, who else commands, what its controller says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from phyai_core.types import PolicySpec
from phyai_ros.controller_facts import order_joints, read_facts
from phyai_ros.doctor.checks import Check, fail, ok, split_fix, warn
from phyai_ros.joints import robot_joint_names
from phyai_ros.metadata import output_topic
from phyai_ros.output_adaptation import controller_names
from phyai_ros.ownership import Ownership
from phyai_ros.robot_checks import named_outputs
from phyai_ros.service_calls import ServiceCaller
from phyai_ros.settings import Output, Settings

if TYPE_CHECKING:
    from rclpy.node import Node

ANSWER_S = 3.0
BY_ACTION = ("follow_joint_trajectory", "gripper_command", "parallel_gripper_command")


def check_robot_side(node: Node, settings: Settings, spec: PolicySpec, policy_name: str) -> list[Check]:
    """`policy_name` is the full name of the policy node, which may be running already."""
    checks = [*_check_twins(node, policy_name), *_check_supervision(node, settings, policy_name)]
    for output in named_outputs(settings).values():
        checks += _check_output(node, output, settings, spec, policy_name)
    return [*checks, *_check_ownership(node, settings)]


def _check_twins(node: Node, policy_name: str) -> Iterator[Check]:
    names = [f"{namespace.rstrip('/')}/{name}" for name, namespace in node.get_node_names_and_namespaces()]
    if names.count(policy_name) > 1:
        text = f"{names.count(policy_name)} nodes are called {policy_name}"
        yield fail("graph", "node name", text, "end one, or give it another name or namespace")


def _check_supervision(node: Node, settings: Settings, policy_name: str) -> Iterator[Check]:
    if settings.require_enable and not node.count_publishers(f"{policy_name}/enable"):
        fix = "start what publishes ~/enable, or set require_enable to false"
        yield warn("graph", "~/enable", "require_enable is set, and nobody publishes it: the robot will not move", fix)


def _check_output(node: Node, output: Output, settings: Settings, spec: PolicySpec, policy: str) -> Iterator[Check]:
    topic = node.resolve_topic_name(output_topic(output))
    listeners = node.get_subscriptions_info_by_topic(topic)
    others = sorted(
        f"{info.node_namespace.rstrip('/')}/{info.node_name}"
        for info in node.get_publishers_info_by_topic(topic)
        if f"{info.node_namespace.rstrip('/')}/{info.node_name}" != policy
    )
    if others:
        fix = "end it before activating: two writers make a robot jump"
        yield fail(topic, "writers", f"{', '.join(others)} commands the same controller", fix)
    if output.type in BY_ACTION:
        return
    if not listeners:
        yield fail(topic, "controller", "nobody listens to it", "start the controller, or correct output.topic")
        return
    yield from _check_listeners(topic, listeners, output)
    yield from _check_controller(node, topic, output, settings, spec)


def _check_listeners(topic: str, listeners: list, output: Output) -> Iterator[Check]:
    from phyai_ros.outputs import load_output

    wanted = load_output(output.type).load_type()
    name = f"{wanted.__module__.split('.')[0]}/msg/{wanted.__name__}"
    kinds = sorted({info.topic_type for info in listeners})
    if name not in kinds:
        text = f"its controller takes {', '.join(kinds)}, output.type {output.type} sends {name}"
        yield fail(topic, "type", text, "choose the output.type that fits the controller")
    else:
        yield ok(topic, "controller", f"{listeners[0].node_name} listens")


def _check_controller(node: Node, topic: str, output: Output, settings: Settings, spec: PolicySpec) -> Iterator[Check]:
    """Its parameters, where it has some to ask for."""
    name = node.resolve_topic_name(output.controller) if output.controller else topic.rpartition("/")[0]
    services = {service for service, _ in node.get_service_names_and_types()}
    if f"{name}/list_parameters" not in services:
        return
    try:
        with ServiceCaller(node) as caller:
            facts = read_facts(caller, name, ANSWER_S)
        order_joints(facts, output.joints or robot_joint_names(settings.joints, spec))
    except ValueError as error:
        what, fix = split_fix(str(error).replace(". Correct", "; correct"))
        yield fail(name, "joints", what, fix)
        return
    for remark in facts.find_warnings(spec.dt_s):
        yield warn(name, "parameters", remark, "change the controller's parameter")


def _check_ownership(node: Node, settings: Settings) -> Iterator[Check]:
    if settings.controller.ownership == "none":
        return
    names = sorted({name.rpartition("/")[2] for name in controller_names(settings).values()})
    verify = settings.controller.model_copy(update={"ownership": "verify", "timeout_s": ANSWER_S})
    try:
        ownership = Ownership(node, verify, names, lambda fault: None)
        ownership.acquire()
        ownership.release()
    except ValueError as error:
        what, fix = split_fix(str(error), "start the controller manager, or correct controller.manager")
        yield fail("controller manager", settings.controller.manager, what, fix)
        return
    yield ok("controller manager", settings.controller.manager, f"{', '.join(names)} active")
