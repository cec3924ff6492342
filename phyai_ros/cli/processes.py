"""Child processes of a command: a log file each, and an orderly end."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from phyai_ros.cli.errors import CommandFailed

INTERRUPT_WAIT_S, TERMINATE_WAIT_S = 8.0, 2.0
TAIL_LINES = 12
PR_SET_PDEATHSIG = 1


def _follow_parent() -> None:
    """Runs in the child: interrupt it when its parent dies, so that a killed command leaves no robot running."""
    with contextlib.suppress(AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


class ChildFailed(CommandFailed):
    """A child process ended although it was needed; says which, how, and the end of its log."""


class Child:
    """One node as a process of its own. It does not see Ctrl-C of the terminal: `stop` decides order and time."""

    def __init__(self, executable: str, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name, self.log = executable, log
        command = [sys.executable, str(find_executable(executable)), *arguments]
        log.unlink(missing_ok=True)  # a child of an earlier run may still hold the old file
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_follow_parent,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise ChildFailed when the process has ended."""
        if (code := self._process.poll()) is not None:
            raise ChildFailed(
                f"{self.name} ended ({describe_exit(code)}). The end of its log, {self.log}:\n{self.tail()}"
            )

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def stop(self) -> int:
        """End it as Ctrl-C does, and harder when that takes too long. Its exit code, negative for a signal."""
        for signum, wait_s in (
            (signal.SIGINT, INTERRUPT_WAIT_S),
            (signal.SIGTERM, TERMINATE_WAIT_S),
            (signal.SIGKILL, None),
        ):
            if self._process.poll() is None:
                self._process.send_signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(wait_s)
        return self._process.returncode


def share_folder() -> Path:
    """Where the configuration files of this package are installed."""
    from ament_index_python.packages import get_package_share_directory

    return Path(get_package_share_directory("phyai_ros"))


def find_executable(name: str) -> Path:
    """Where a node of this package is installed. Raises ValueError when the package is not."""
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        path = Path(get_package_prefix("phyai_ros")) / "lib" / "phyai_ros" / name
    except PackageNotFoundError as error:
        raise ValueError(
            "phyai_ros is not installed where ROS looks for it; run make setup, or source your workspace."
        ) from error
    if not path.is_file():
        raise ValueError(f"{path} is missing; run make setup, or build the workspace anew.")
    return path


def describe_exit(code: int) -> str:
    """A node handles Ctrl-C as soon as it is loaded; only before that a SIGINT ends it."""
    if code == -signal.SIGINT:
        return "interrupted while it was loading"
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
