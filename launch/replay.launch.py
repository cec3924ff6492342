"""Plays a bag to the policy node over real topics, under simulated time. Needs ros2bag; phyai-ros replay needs nothing.

Only the topics that the node listens to are played, so that its own recorded output does not meet the new one. The bag
starts when the node is active; when it ends, everything ends, unless it loops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.event_handlers import OnStateTransition
from launch_ros.substitutions import FindPackageShare

from launch import LaunchContext, LaunchDescription
from phyai_ros.parameters import build_settings
from phyai_ros.replay.params_file import read_params_file
from phyai_ros.replay.topics import NodeName

SHARE = FindPackageShare("phyai_ros")

ARGUMENTS = (
    ("bag", "", "rosbag2 folder or file to play; has to be given"),
    (
        "params_file",
        PathJoinSubstitution([SHARE, "config", "policy.yaml"]),
        "YAML file with the parameters of the node",
    ),
    ("namespace", "", "Namespace of the node; its topics are relative to it"),
    ("node_name", "policy", "Name of the node"),
    ("rate", "1.0", "How much faster than it was recorded the bag is played"),
    ("clock_hz", "100", "How often /clock is published, per second of the bag; not below the rate of the policy"),
    ("loop", "false", "true: play the bag again and again"),
    ("start_paused", "false", "true: begin paused; the space bar, or the service ~/resume of the player, goes on"),
    ("topics", "", "Topics to play, separated by spaces; empty: those that the node listens to"),
    ("log_level", "info", "debug, info, warn, error or fatal"),
)
FORWARDED = ("params_file", "namespace", "node_name", "log_level")


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text) for name, default, text in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start_replay)])


def start_replay(context: LaunchContext) -> list[Any]:
    values = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    if not Path(values["bag"]).exists():
        raise RuntimeError(f"bag is {values['bag']!r}, which does not exist; give a rosbag2 folder or file.")
    loops = read_switch("loop", values["loop"])
    player = ExecuteProcess(
        cmd=play_command(values),
        output="screen",
        on_exit=None if loops else end_with_player,
    )
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution([SHARE, "launch", "policy.launch.py"])),
        launch_arguments={**{name: values[name] for name in FORWARDED}, "use_sim_time": "true"}.items(),
    )
    begin = OnStateTransition(start_state="activating", goal_state="active", entities=[player])
    return [RegisterEventHandler(begin), policy]


def play_command(values: dict[str, str]) -> list[str]:
    """The call of ros2 bag. Its options have had these names since Humble."""
    rate, clock_hz = read_number("rate", values["rate"]), read_number("clock_hz", values["clock_hz"])
    command = ["ros2", "bag", "play", values["bag"], "--clock", f"{clock_hz:g}", "--rate", f"{rate:g}"]
    command += ["--loop"] if read_switch("loop", values["loop"]) else []
    command += ["--start-paused"] if read_switch("start_paused", values["start_paused"]) else []
    return [*command, "--topics", *(values["topics"].split() or input_topics(values))]


def input_topics(values: dict[str, str]) -> list[str]:
    """What the node listens to, as its parameter file says."""
    node = NodeName(values["node_name"], values["namespace"])
    settings = build_settings(read_params_file(Path(values["params_file"]), node.full))
    topics = [settings.inputs.joint_states_topic, *(camera.topic for camera in settings.cameras.by_key.values())]
    topics += [settings.stop.estop_topic] if settings.stop.estop_topic else []
    return [node.resolve(topic) for topic in (*topics, "~/enable", "~/prompt")]


def end_with_player(event: Any, context: LaunchContext) -> Shutdown | None:
    """Shutting down twice is an error, so not when that is why it ended."""
    return None if context.is_shutdown else Shutdown(reason="the bag has ended")


def read_number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise RuntimeError(f"{name} is {text!r}; allowed is a number above 0.")
    return number


def read_switch(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RuntimeError(f"{name} is {text!r}; allowed is true or false.")
    return text.lower() == "true"
