"""Runs a launch file as `ros2 launch` does, with the test double where launch_ros is not installed.

python launch_runner.py FILE name:=value ...      SIGINT ends it; exit code 0 when every process ended well
"""

from __future__ import annotations

import importlib.util
import sys

HAVE_LAUNCH_ROS = importlib.util.find_spec("launch_ros") is not None


def run_real(path: str, arguments: dict[str, str]) -> int:
    from launch.actions import IncludeLaunchDescription
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    from launch import LaunchDescription, LaunchService

    service = LaunchService()
    include = IncludeLaunchDescription(PythonLaunchDescriptionSource(path), launch_arguments=arguments.items())
    service.include_launch_description(LaunchDescription([include]))
    return service.run()


def run_double(path: str, arguments: dict[str, str]) -> int:
    from launch_double import Launch, install_stand_ins  # its folder is where this script was started from

    install_stand_ins()
    return Launch(arguments).run(path)


if __name__ == "__main__":
    given = dict(argument.split(":=", 1) for argument in sys.argv[2:])
    sys.exit((run_real if HAVE_LAUNCH_ROS else run_double)(sys.argv[1], given))
