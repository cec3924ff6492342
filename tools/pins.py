"""The pinned versions of constraints.txt, cut to what fits the machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_TORCH = ("torch", "triton")
OLDEST_TORCH = (2, 9)


def read_pins(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Package name -> the line that pins it (name==version, with a marker in some)."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {normalise(line.split("==")[0]): line for line in lines if line}


def read_requirements(name: str) -> list[str]:
    """The requirement lines of a file, relative to the root of the repository."""
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line]


def select_pins(pins: dict[str, str], installed: dict[str, str], ros_is_sourced: bool) -> dict[str, str]:
    """The pins to apply, given {name: version} of what the interpreter already imports.

    The CPU build of torch is pinned only where nothing asks for another: a torch that is new enough is kept, and a
    machine with an NVIDIA driver takes the newest. A ROS installation keeps the packages that it brings.
    """
    kept = dict(pins)
    if has_nvidia_driver() or is_new_enough(installed.get("torch")):
        kept = {name: line for name, line in kept.items() if name not in CPU_TORCH}
    if ros_is_sourced:
        kept = {name: line for name, line in kept.items() if name not in installed}
    return kept


def is_new_enough(torch_version: str | None) -> bool:
    """True for a torch that may stay."""
    found = re.match(r"(\d+)\.(\d+)", torch_version or "")
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_TORCH


def has_nvidia_driver() -> bool:
    """True where the kernel driver or its tool is present."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def normalise(name: str) -> str:
    """A package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()
