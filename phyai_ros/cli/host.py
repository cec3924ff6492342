"""Facts about this machine that a measured figure is worth nothing without."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path


def host_facts() -> dict[str, str | int]:
    """Flat facts for a JSON report: date, CPU, cores we may use, Python, ROS distribution."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host_cpu": _cpu_name(),
        "host_cores": usable_cores(),
        "host_system": f"{platform.system()} {platform.release()}",
        "host_python": platform.python_version(),
        "host_ros": os.environ.get("ROS_DISTRO", "wheels"),
    }


def host_line(facts: dict) -> str:
    """One line for the foot of a plot: machine and day."""
    day = str(facts.get("date", ""))[:10]
    return f"{facts.get('host_cpu', 'unknown CPU')}, {facts.get('host_cores', '?')} cores, {day}"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
