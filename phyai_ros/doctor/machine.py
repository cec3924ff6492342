"""This machine: cores, clock governor, permissions for punctuality, middleware set-up. Reads files and limits only."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from phyai_ros.doctor.checks import Check, fail, ok, warn

if TYPE_CHECKING:
    from phyai_ros.settings import Settings

AREA = "machine"
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
LEAST_SEGMENT_BYTES = 4 << 20
LEAST_SHM_BYTES = 128 << 20
LARGE_IMAGE_BYTES = 400_000  # above, the default shared-memory segment of Fast DDS loses images


@dataclass(frozen=True)
class Machine:
    """Where the facts come from; tests point it at files of their own."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    shm: Path = Path("/dev/shm")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


def check_machine(settings: Settings | None, machine: Machine | None = None) -> list[Check]:
    """`settings` None: what is asked for is not known, so only facts that matter to everyone."""
    machine = machine or Machine()
    checks = [_check_cores(machine), _check_governor(machine), _check_shm(machine), _check_middleware(machine)]
    if settings is not None:
        checks += [*_check_priority(settings), *_check_locking(settings), *_check_affinity(settings)]
    return checks


def _check_cores(machine: Machine) -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = float((machine.proc / "loadavg").read_text().split()[0]) if (machine.proc / "loadavg").is_file() else 0.0
    text = f"{cores} cores, load {load:.1f} over the last minute"
    if load > cores:
        return warn(AREA, "load", f"{text}: more work than cores, ticks will be late", "end other programs")
    return ok(AREA, "load", text)


def _check_governor(machine: Machine) -> Check:
    files = sorted((machine.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    governors = {file.read_text().strip() for file in files}
    slow = sorted(governors - {"performance"})
    if slow:
        fix = "sudo cpupower frequency-set -g performance, for as long as the robot moves"
        return warn(AREA, "governor", f"the CPU clock follows the governor {', '.join(slow)}: ticks wake up late", fix)
    return ok(AREA, "governor", "performance" if governors else "this machine shows none (virtual, or fixed clock)")


def _check_shm(machine: Machine) -> Check:
    if not machine.shm.is_dir():
        return warn(AREA, "shared memory", f"{machine.shm} is missing: images go over the network stack", "mount it")
    room = os.statvfs(machine.shm)
    mib = room.f_bavail * room.f_frsize / 2**20
    if mib * 2**20 < LEAST_SHM_BYTES:
        return warn(
            AREA, "shared memory", f"{mib:.0f} MiB are free in {machine.shm}", "enlarge it (docker: --shm-size=1g)"
        )
    return ok(AREA, "shared memory", f"{mib:.0f} MiB are free")


def _check_middleware(machine: Machine) -> Check:
    """Whether our own large messages would get through; large images of others are judged at their topics."""
    chosen = machine.environment.get("RMW_IMPLEMENTATION", "")
    if chosen and "fastrtps" not in chosen:
        return ok(AREA, "middleware", f"{chosen}; the settings of Fast DDS do not matter")
    profile = next((machine.environment[name] for name in PROFILE_VARIABLES if machine.environment.get(name)), "")
    if not profile:
        return ok(AREA, "middleware", "Fast DDS with default transports: fine for images below 400 kB")
    return _check_profile(Path(profile))


def _check_profile(path: Path) -> Check:
    fix = "use config/fastdds_shm.xml of this package"
    if not path.is_file():
        return fail(AREA, "middleware", f"the profile {path} of Fast DDS does not exist", fix)
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        return fail(AREA, "middleware", f"the profile {path} of Fast DDS is not XML ({error})", fix)
    sizes = [int(node.text or 0) for node in tree.iter() if node.tag.rpartition("}")[2] == "segment_size"]
    if max(sizes, default=0) < LEAST_SEGMENT_BYTES:
        return warn(AREA, "middleware", f"{path} sets no shared-memory segment of 4 MiB or more", fix)
    return ok(AREA, "middleware", f"Fast DDS with a shared-memory segment of {max(sizes) / 2**20:.0f} MiB")


def has_large_segment(machine: Machine | None = None) -> bool:
    """Whether large images were provided for in this environment; the camera's process needs the same."""
    machine = machine or Machine()
    check = _check_middleware(machine)
    return not check.fix and "default transports" not in check.text


def _check_priority(settings: Settings) -> list[Check]:
    wanted = settings.realtime.priority
    if not wanted:
        return []
    allowed = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if os.geteuid() != 0 and allowed != resource.RLIM_INFINITY and allowed < wanted:
        fix = f"a line '<user> - rtprio {wanted}' in /etc/security/limits.d, then log in again"
        return [fail(AREA, "realtime.priority", f"{wanted} is asked for, {allowed} is permitted", fix)]
    return [ok(AREA, "realtime.priority", f"{wanted} is permitted")]


def _check_locking(settings: Settings) -> list[Check]:
    if not settings.realtime.lock_memory:
        return []
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if os.geteuid() != 0 and limit != resource.RLIM_INFINITY:
        fix = "a line '<user> - memlock unlimited' in /etc/security/limits.d, then log in again"
        return [fail(AREA, "realtime.lock_memory", f"only {limit // 1024} KiB may be locked", fix)]
    return [ok(AREA, "realtime.lock_memory", "permitted")]


def _check_affinity(settings: Settings) -> list[Check]:
    wanted = set(settings.realtime.affinity)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else wanted
    if wanted - usable:
        fix = f"name cores of {', '.join(map(str, sorted(usable)))}"
        return [fail(AREA, "realtime.affinity", f"cores {sorted(wanted - usable)} cannot be used here", fix)]
    return [ok(AREA, "realtime.affinity", f"cores {sorted(wanted)} are usable")] if wanted else []
