"""Runs the steps of a long set-up: one line each on the screen, everything they print in a log file."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from pathlib import Path

LOG = Path("log") / "setup.log"
LINE_WIDTH = 100
TAIL_LINES = 8


class StepError(Exception):
    """A step failed; the text is for the user."""


def run_step(title: str, command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Run `command`, show `title` and the seconds it took. Raises StepError with the end of its output."""
    start_s = time.monotonic()
    show(f"  {title} ...")
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        print(f"\n$ {' '.join(map(str, command))}", file=log, flush=True)
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        for line in process.stdout or ():
            log.write(line)
            tail.append(line.rstrip())
            show(f"  {title}: {line.strip()}")
        if process.wait() != 0:
            end = "\n".join(f"    {line}" for line in tail)
            raise StepError(f"\n{title}: failed (exit code {process.returncode}).\n{end}\nThe whole output is in {LOG}")
    show(f"  {title}: {time.monotonic() - start_s:.0f} s", is_last=True)


def show(text: str, is_last: bool = False) -> None:
    """One line: rewritten in place on a terminal; elsewhere only the last one is printed."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text[:LINE_WIDTH]}", end="\n" if is_last else "", flush=True)
    elif is_last:
        print(text, flush=True)
