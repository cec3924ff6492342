"""Starts the simulated robot and the policy that drives it; `phyai-ros demo` adds a live view, figures and plots."""

from __future__ import annotations

from typing import Any

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

from launch import LaunchContext, LaunchDescription

SHARE = FindPackageShare("phyai_ros")
MODES = ("rtc", "none", "sync")

ARGUMENTS = (
    ("seed", "0", "Seed of the episodes and of the policy's noise"),
    ("episodes", "0", "Episodes to run, after which the launch ends; 0: without end"),
    (
        "mode",
        "rtc",
        "rtc: as config/demo.yaml says; none: chunks are swapped as they come; sync: wait for each inference",
    ),
    ("inject_delay_s", "0.0", "Makes each inference slower by so many seconds"),
    ("dashboard", "false", "true: serve the dashboard, on this machine only"),
    ("log_level", "info", "debug, info, warn, error or fatal"),
)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text) for name, default, text in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start_demo)])


def start_demo(context: LaunchContext) -> list[Any]:
    values = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    if values["mode"] not in MODES:
        raise RuntimeError(f"mode is {values['mode']!r}; allowed is {', '.join(MODES)}.")
    simulator = Node(
        package="phyai_ros",
        executable="sim_robot",
        name="sim_robot",
        parameters=[{"seed": int(values["seed"]), "episodes": int(values["episodes"]), "exit_when_finished": True}],
        ros_arguments=["--log-level", values["log_level"]],
        output="screen",
        on_exit=end_with_simulator,
    )
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution([SHARE, "launch", "policy.launch.py"])),
        launch_arguments={
            "params_file": PathJoinSubstitution([SHARE, "config", "demo.yaml"]),
            "overrides": overrides(values),
            "dashboard": values["dashboard"],
            "log_level": values["log_level"],
        }.items(),
    )
    return [simulator, policy]


def end_with_simulator(event: Any, context: LaunchContext) -> Shutdown | None:
    """Without the robot nothing is left to do. Shutting down twice is an error, so not when that is why it ended.

    An error raised here shuts down too, and makes the exit code of the launch 1.
    """
    if context.is_shutdown:
        return None
    if event.returncode != 0:
        raise RuntimeError(f"the simulated robot ended with exit code {event.returncode}; its lines above say why.")
    return Shutdown(reason="all episodes are over")


def overrides(values: dict[str, str]) -> str:
    """The parameters that the arguments decide, as one line of YAML."""
    mode = "" if values["mode"] == "rtc" else f", rtc.mode: {values['mode']}"
    return (
        f"{{inference.seed: {int(values['seed'])}, inference.inject_delay_s: {float(values['inject_delay_s'])}{mode}}}"
    )
