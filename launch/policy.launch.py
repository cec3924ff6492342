"""Starts the policy node and, with autostart, takes it through configure and activate.

An argument left empty keeps what params_file says. Values that are text stay text: checkpoint:=0483 is a name.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode, Node
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.substitutions import FindPackageShare
from lifecycle_msgs.msg import Transition

from launch import LaunchContext, LaunchDescription

CONFIG = PathJoinSubstitution([FindPackageShare("phyai_ros"), "config"])

ARGUMENTS = (
    ("params_file", PathJoinSubstitution([CONFIG, "policy.yaml"]), "YAML file with the parameters of the node"),
    ("namespace", "", "Namespace of the node; its topics are relative to it"),
    ("node_name", "policy", "Name of the node"),
    ("adapter", "", "Policy adapter by its name (inference.adapter); empty: as in params_file"),
    ("checkpoint", "", "Checkpoint file or folder (inference.checkpoint); empty: as in params_file"),
    ("device", "", "cpu, cuda or cuda:N (inference.device); empty: as in params_file"),
    ("use_sim_time", "", "true: follow /clock; empty: as in params_file"),
    ("overrides", "", "More parameters as one line of YAML, for example '{rtc.mode: none}'"),
    ("autostart", "true", "true: configure and activate the node; false: leave that to you"),
    ("dashboard", "false", "true: serve the dashboard of this node, on this machine only"),
    ("dashboard_port", "8080", "Port of the dashboard"),
    ("log_level", "info", "debug, info, warn, error or fatal"),
)
TEXT_PARAMETERS = {"adapter": "inference.adapter", "checkpoint": "inference.checkpoint", "device": "inference.device"}


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text) for name, default, text in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start_policy)])


def start_policy(context: LaunchContext) -> list[Any]:
    values = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    if not Path(values["params_file"]).is_file():
        raise RuntimeError(
            f"params_file is {values['params_file']!r}, which is not a file; give the path of a YAML file."
        )
    node = LifecycleNode(
        package="phyai_ros",
        executable="policy_node",
        name=values["node_name"],
        namespace=values["namespace"],
        parameters=[values["params_file"], *override_file(values, full_name(context, values))],
        ros_arguments=["--log-level", values["log_level"]],
        additional_env=middleware_profile(PathJoinSubstitution([CONFIG, "fastdds_shm.xml"]).perform(context)),
        output="screen",
    )
    beside = [dashboard(values)] if read_switch("dashboard", values["dashboard"]) else []
    if not read_switch("autostart", values["autostart"]):
        return [node, *beside]
    return [activate_once_configured(node), node, request(node, Transition.TRANSITION_CONFIGURE), *beside]


def dashboard(values: dict[str, str]) -> Node:
    """A process of its own that listens only while somebody looks."""
    return Node(
        package="phyai_ros",
        executable="dashboard",
        name=f"{values['node_name']}_dashboard",
        namespace=values["namespace"],
        parameters=[parameter_file({"policy": values["node_name"], "port": int(values["dashboard_port"])}, "/**")],
        output="screen",
    )


def override_file(values: dict[str, str], node_path: str) -> list[str]:
    """A parameter file that stands above params_file; none when every argument is empty.

    Under the full name of the node too, since that wins over wildcards wherever it stands.
    """
    given: dict[str, Any] = {name: values[key] for key, name in TEXT_PARAMETERS.items() if values[key]}
    if values["use_sim_time"]:
        given["use_sim_time"] = read_switch("use_sim_time", values["use_sim_time"])
    more = yaml.safe_load(values["overrides"]) or {}
    if not isinstance(more, dict):
        raise RuntimeError(f"overrides is {values['overrides']!r}; allowed is a mapping such as '{{rtc.mode: none}}'.")
    given.update(more)
    if not given:
        return []
    return [parameter_file(given, "/**", node_path)]


def parameter_file(parameters: dict[str, Any], *nodes: str) -> str:
    """Path of a new file that gives `parameters` to `nodes`.

    JSON, because it quotes all text: what YAML dumpers leave bare, such as 0483, would reach the node as a number.
    """
    with tempfile.NamedTemporaryFile("w", prefix="policy_parameters_", suffix=".yaml", delete=False) as file:
        json.dump({node: {"ros__parameters": parameters} for node in nodes}, file)
    return file.name


def full_name(context: LaunchContext, values: dict[str, str]) -> str:
    """Namespace and name of the node, with what PushRosNamespace has put before them."""
    outer = "" if values["namespace"].startswith("/") else context.launch_configurations.get("ros_namespace", "")
    parts = f"{outer}/{values['namespace']}/{values['node_name']}".split("/")
    return "/" + "/".join(filter(None, parts))


def read_switch(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RuntimeError(f"{name} is {text!r}; allowed is true or false.")
    return text.lower() == "true"


def middleware_profile(path: str) -> dict[str, str]:
    """Shared memory that holds whole images, for this node only and unless the user chose a profile."""
    variable = "FASTRTPS_DEFAULT_PROFILES_FILE" if os.environ.get("ROS_DISTRO") in ("humble", "iron") else None
    variable = variable or "FASTDDS_DEFAULT_PROFILES_FILE"
    return {} if os.environ.get(variable) else {variable: path}


def request(node: LifecycleNode, transition_id: int) -> EmitEvent:
    return EmitEvent(event=ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition_id))


def activate_once_configured(node: LifecycleNode) -> RegisterEventHandler:
    """Only configuring -> inactive: neither a failed configure nor a later deactivate starts the robot again."""
    return RegisterEventHandler(
        OnStateTransition(
            target_lifecycle_node=node,
            start_state="configuring",
            goal_state="inactive",
            entities=[request(node, Transition.TRANSITION_ACTIVATE)],
        )
    )
