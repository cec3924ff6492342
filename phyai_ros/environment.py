"""What a process must find in its environment before rclpy is imported: the ament prefix and the library path.

A sourced ROS workspace sets both. A virtual environment does not, so `prepare_environment` does it for one that
holds this package. A process outside of such a prefix, or with a workspace sourced that holds it too, is left as it is.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_INDEX_ENTRY = Path("share/ament_index/resource_index/packages/phyai_ros")
_TYPE_SUPPORT = Path("lib/libphyai_ros__rosidl_typesupport_c.so")
_RESTARTED = "PHYAI_ROS_RESTARTED"


def prepare_environment(prefix: Path | None = None) -> None:
    """Make the virtual environment's own ament prefix visible to this process and its children.

    The loader reads LD_LIBRARY_PATH only when a process starts: if the prefix's libraries are not on it, the
    process is replaced once by itself with the path set. Call it before rclpy is imported and before threads.
    """
    prefix = Path(sys.prefix) if prefix is None else prefix
    sourced = (Path(part) for part in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if part)
    owner = next((part for part in sourced if (part / _INDEX_ENTRY).exists()), prefix)
    if owner != prefix or not (prefix / _INDEX_ENTRY).exists():
        return
    _put_first("AMENT_PREFIX_PATH", prefix)
    _put_first("PATH", prefix / "bin")
    needs_libraries = (prefix / _TYPE_SUPPORT).exists() and _put_first("LD_LIBRARY_PATH", prefix / "lib")
    if needs_libraries and os.environ.get(_RESTARTED) != str(prefix):
        os.environ[_RESTARTED] = str(prefix)
        os.execv(sys.executable, sys.orig_argv)


def prepare_node() -> None:
    """For the script of a node: as prepare_environment; and until the node handles Ctrl-C, that ends it silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare_environment()


def _put_first(variable: str, folder: Path) -> bool:
    """Put `folder` first in a path-list variable; True where it was missing."""
    parts = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
    others = [part for part in parts if part != str(folder)]
    os.environ[variable] = os.pathsep.join([str(folder), *others])
    return len(others) == len(parts)
