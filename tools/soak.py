"""The simulated robot and the policy node for a long time: nothing may grow and no deadline may be lost on the way.

`make soak` runs ten minutes, `make soak ARGS="--minutes 60"` an hour. Every few seconds memory, threads, open files and
shared-memory files of the policy node are counted, and missed ticks and the tick error are taken from ~/status. The
last three quarters have to be flat against the second eighth, and of their ticks only a few may be missed or starved:
the machine may be shared, so single ones are no fault of the node. Writes docs/soak.md with --write.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "soak.md"
SAMPLE_S, START_LIMIT_S = 5.0, 120.0
GROWTH_BYTES, GROWTH_COUNT = 16 << 20, 2  # what may come and go: caches of the middleware, a thread of a service call
LOST_SHARE = 0.01  # of the ticks: missed, or without an action
LATE_S = 0.02  # half a control period: a tick error below this costs no deadline


@dataclass(frozen=True)
class Sample:
    """The policy node at one time; tick figures are those of its last status."""

    time_s: float
    memory_bytes: int
    threads: int
    files: int
    shm_files: int
    ticks: int
    missed_ticks: int
    starved_ticks: int
    chunks: int
    tick_error_p99_s: float


COLUMNS: dict[str, Callable[[Sample], str]] = {
    "after, s": lambda sample: f"{sample.time_s:.0f}",
    "memory, MiB": lambda sample: f"{sample.memory_bytes / 2**20:.1f}",
    "threads": lambda sample: str(sample.threads),
    "open files": lambda sample: str(sample.files),
    "shared memory": lambda sample: str(sample.shm_files),
    "chunks": lambda sample: str(sample.chunks),
    "missed ticks": lambda sample: str(sample.missed_ticks),
    "starved ticks": lambda sample: str(sample.starved_ticks),
    "tick error p99, ms": lambda sample: f"{sample.tick_error_p99_s * 1e3:.2f}",
}


def main() -> int:
    """Exit code 0 when everything stayed flat, 1 with what did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--write", action="store_true", help="write docs/soak.md")
    options = parser.parse_args()
    samples = run(options.minutes * 60.0)
    problems = judge(samples)
    text = describe(samples, problems)
    print(text)
    if options.write:
        PAGE.write_text(text)
    return 1 if problems else 0


def run(duration_s: float) -> list[Sample]:
    """Samples of one run."""
    from phyai_ros.cli.own_graph import private_graph
    from phyai_ros.cli.processes import Child

    folder = Path(tempfile.mkdtemp(prefix="soak_"))
    environment = private_graph(folder, ROOT / "config" / "fastdds_shm.xml")
    os.environ.update(environment)
    robot = Child("sim_robot", [], environment, folder / "sim_robot.log")
    arguments = ["--ros-args", "--params-file", str(ROOT / "config" / "demo.yaml")]
    policy = Child("policy_node", arguments, environment, folder / "policy.log")
    try:
        return sample_run(policy, robot, duration_s)
    finally:
        policy.stop()
        robot.stop()


def sample_run(policy, robot, duration_s: float) -> list[Sample]:
    from phyai_ros.cli.graph_client import GraphClient
    from phyai_ros.msg import PolicyStatus

    def watch() -> None:
        policy.check()
        robot.check()

    statuses: list[PolicyStatus] = []
    with GraphClient("soak", watch) as client:
        client.node.create_subscription(PolicyStatus, "policy/status", lambda m: statuses.append(m), 10)
        client.change_state("policy", "configure", START_LIMIT_S)
        client.change_state("policy", "activate", START_LIMIT_S)
        began_s, samples = time.monotonic(), []
        while (elapsed_s := time.monotonic() - began_s) < duration_s:
            watch()
            time.sleep(SAMPLE_S)
            if statuses:
                samples.append(take(policy.pid, elapsed_s, statuses[-1]))
                statuses.clear()
    return samples


def take(pid: int, time_s: float, status) -> Sample:
    """What the system and the node say."""
    process = Path(f"/proc/{pid}")
    maps = (process / "maps").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
    return Sample(
        time_s=time_s,
        memory_bytes=int(fields["VmRSS"].split()[0]) * 1024,
        threads=int(fields["Threads"]),
        files=len(list((process / "fd").iterdir())),
        shm_files=len({line.split()[-1] for line in maps if "/dev/shm/" in line}),
        ticks=status.tick,
        missed_ticks=status.missed_ticks,
        starved_ticks=status.starved_ticks,
        chunks=status.chunks,
        tick_error_p99_s=status.tick_error_p99,
    )


def judge(samples: list[Sample]) -> list[str]:
    """What grew and which deadlines were lost, or an empty list."""
    if len(samples) < 16:
        return [f"only {len(samples)} samples: the run was too short"]
    eighth = len(samples) // 8
    early, late = samples[eighth : 2 * eighth], samples[2 * eighth :]
    problems = []
    counts = ("threads", "files", "shm_files")
    for name, allowed in (("memory_bytes", GROWTH_BYTES), *((name, GROWTH_COUNT) for name in counts)):
        before, after = (float(np.median([getattr(s, name) for s in part])) for part in (early, late[-eighth:]))
        if after - before > allowed:
            problems.append(f"{name} grew from {before:.0f} to {after:.0f}")
    if late[-1].chunks <= late[0].chunks:
        problems.append("no chunks were executed")
    return problems + judge_deadlines(early, late)


def judge_deadlines(early: list[Sample], late: list[Sample]) -> list[str]:
    """Too many ticks lost, or a control loop that gets less and less punctual."""
    problems = []
    ticks = late[-1].ticks - late[0].ticks
    for name in ("missed_ticks", "starved_ticks"):
        lost = getattr(late[-1], name) - getattr(late[0], name)
        if lost > LOST_SHARE * ticks:
            problems.append(f"{name}: {lost} of {ticks}, allowed {LOST_SHARE:.0%}")
    before, after = (float(np.median([s.tick_error_p99_s for s in part])) for part in (early, late[-len(early) :]))
    if after > max(2.0 * before, LATE_S):
        problems.append(f"tick_error_p99 grew from {before * 1e3:.1f} to {after * 1e3:.1f} ms")
    return problems


def describe(samples: list[Sample], problems: list[str]) -> str:
    """The page: start, middle and end, and the verdict."""
    rows = [samples[i] for i in (len(samples) // 8, len(samples) // 2, -1)] if samples else []
    lines = [
        "# A long run",
        "",
        "Written by `make soak`: the simulated robot and the policy node as two processes, episode after episode, on",
        f"a machine with {os.cpu_count()} cores shared with other work. The figures are those of the policy node.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(f"| {' | '.join(show(row) for show in COLUMNS.values())} |" for row in rows),
    ]
    verdict = "; ".join(problems) or "memory, threads, open and shared-memory files stayed flat, deadlines were kept"
    return "\n".join([*lines, "", f"{len(samples)} samples: {verdict}.", ""])


if __name__ == "__main__":
    sys.exit(main())
