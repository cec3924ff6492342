"""Punctuality of the process and of its control thread. Each means is optional and fails with a sentence, not an error.

The interpreter's switch interval matters most: at the default of 5 ms a busy Python thread delays a tick by as much.
Scheduling priority, memory locking and CPU affinity need permissions that users lack by default.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

MCL_CURRENT, MCL_FUTURE = 1, 2


class RealtimeSettings(Protocol):
    """What is asked for; `priority` 0, `lock_memory` False and an empty `affinity` mean: leave it alone."""

    @property
    def priority(self) -> int: ...

    @property
    def switch_interval_s(self) -> float: ...

    @property
    def lock_memory(self) -> bool: ...

    @property
    def affinity(self) -> tuple[int, ...]: ...


class RealtimeScope:
    """Applies the settings of the process until `close`. `enter_control_thread` applies those of the calling thread.

    `warnings` {parameter: sentence} says what the system refused; the node runs without it.
    """

    def __init__(self, settings: RealtimeSettings) -> None:
        self._settings = settings
        self._undo = ExitStack()
        self.warnings: dict[str, str] = {}
        self._undo.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(settings.switch_interval_s)
        freeze_garbage()
        self._undo.callback(gc.unfreeze)
        if settings.lock_memory:
            self._try("realtime.lock_memory", lock_memory)

    def enter_control_thread(self) -> None:
        """Call it in the control thread; its priority and cores end with it."""
        if self._settings.affinity:
            self._try("realtime.affinity", lambda: pin_thread(self._settings.affinity))
        if self._settings.priority:
            self._try("realtime.priority", lambda: raise_priority(self._settings.priority))

    def close(self) -> None:
        """Put the process back as it was; locked memory stays locked."""
        self._undo.close()

    def _try(self, parameter: str, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            self.warnings[parameter] = str(error)


def freeze_garbage() -> None:
    """Collect now and exempt what survives: later collections then look at new objects only, and stay short."""
    gc.collect()
    gc.freeze()


def raise_priority(priority: int) -> None:
    """Schedule the calling thread as SCHED_FIFO. Raises OSError with the cause and the fix."""
    _require("sched_setscheduler")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        raise OSError(
            f"SCHED_FIFO priority {priority} was refused ({error.strerror}); allow it with a line"
            f" '<user> - rtprio {priority}' in /etc/security/limits.d and log in again"
        ) from error


def pin_thread(cores: tuple[int, ...]) -> None:
    """Run the calling thread on `cores` only. Raises OSError with the cause and the fix."""
    _require("sched_setaffinity")
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        usable = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise OSError(f"cores {list(cores)} were refused ({error.strerror}); usable are {usable}") from error


def lock_memory() -> None:
    """Keep every page of the process in memory, those to come included. Raises OSError with the cause and the fix.

    Under a limit it is not even tried: once the limit is reached, allocations would fail.
    """
    limited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY and os.geteuid() != 0
    code = 1 if limited else ctypes.CDLL(None, use_errno=True).mlockall(MCL_CURRENT | MCL_FUTURE)
    if code != 0:
        cause = "memlock is limited" if limited else os.strerror(ctypes.get_errno())
        raise OSError(
            f"memory could not be locked ({cause}); allow it with a line '<user> - memlock unlimited'"
            " in /etc/security/limits.d and log in again"
        )


def _require(function: str) -> None:
    if not hasattr(os, function):
        raise OSError(f"this system has no {function}; leave the parameter at its default")
