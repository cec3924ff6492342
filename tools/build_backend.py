"""The pip build (PEP 517): setuptools, plus the ROS 2 message generators at the versions of constraints.txt."""

from __future__ import annotations

import os

import pins
from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

NOT_EDITABLE = "phyai_ros cannot be installed in editable mode. Run `make setup`: it links .venv to this folder."
BUILD_TOOLS = ("catkin-pkg", "cmake", "empy", "lark-parser", "ninja", "numpy")


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """The build requirements. Refuses where ROS 2 is sourced: messages built from wheels would not fit it."""
    if os.environ.get("ROS_DISTRO") and os.environ.get("AMENT_PREFIX_PATH"):
        raise SystemExit(
            f"ROS 2 {os.environ['ROS_DISTRO']} is sourced: build with colcon build --packages-select phyai_ros, "
            "or run pip in a shell where no ROS 2 is sourced."
        )
    wanted = [line for name, line in pins.read_pins().items() if name in BUILD_TOOLS or name.startswith("ros-")]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *wanted]


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    """Refuses before anything is downloaded: pip would link the Python files but leave out the generated messages."""
    raise SystemExit(NOT_EDITABLE)


def build_editable(*_: object, **__: object) -> str:
    """Refuses as above, without build isolation too."""
    raise SystemExit(NOT_EDITABLE)
