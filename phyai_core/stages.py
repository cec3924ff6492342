"""How long each stage of one inference takes, on the host and, inside a captured graph, on the device."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class StageClock(Protocol):
    """Marks the ends of stages in the order they run; the first mark is where the first stage starts."""

    def mark(self, name: str) -> None:
        """The stage `name` ends here, in the order of work on the device."""

    def seconds(self) -> dict[str, float]:
        """{stage: seconds} between consecutive marks of the last run. The device must have passed the last one."""


class HostStageClock:
    """For work that is done when the call returns."""

    def __init__(self) -> None:
        self._marks_ns: dict[str, int] = {}

    def mark(self, name: str) -> None:
        self._marks_ns.pop(name, None)  # the order of the last run counts
        self._marks_ns[name] = time.perf_counter_ns()

    def seconds(self) -> dict[str, float]:
        names, times = list(self._marks_ns), list(self._marks_ns.values())
        return {name: (end - start) * 1e-9 for name, start, end in zip(names[1:], times, times[1:], strict=False)}


class DeviceStageClock:
    """CUDA events. Marked during capture they become part of the graph, and each replay records them anew."""

    def __init__(self) -> None:
        self._events: dict[str, torch.cuda.Event] = {}

    def mark(self, name: str) -> None:
        if name not in self._events:
            self._events[name] = torch.cuda.Event(enable_timing=True, external=True)
        self._events[name].record()

    def seconds(self) -> dict[str, float]:
        names, events = list(self._events), list(self._events.values())
        pairs = zip(names[1:], events, events[1:], strict=False)
        return {name: start.elapsed_time(end) * 1e-3 for name, start, end in pairs}
