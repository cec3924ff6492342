"""How long work takes on a device: medians over runs, several pieces of work taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

RUNS = 16


def make_replay(work: Callable[[], Any], device: torch.device, calls: int) -> Callable[[], Any]:
    """What runs `work` `calls` times: on a GPU one graph, so that launching does not count.

    Raises RuntimeError where it fails.
    """
    if device.type == "cuda":
        return _capture(work, device, calls).replay

    def repeat() -> None:
        for _ in range(calls):
            work()

    repeat()
    return repeat


def take_turns(replays: Mapping[str, Callable[[], Any]], device: torch.device, runs: int = RUNS) -> dict[str, float]:
    """Median microseconds of each. They take turns, there and back: a GPU that gets hot slows all of them alike."""
    spans: dict[str, list[float]] = {name: [] for name in replays}
    names = list(replays)
    for run in range(runs + 2):
        for name in names if run % 2 else names[::-1]:
            spans[name].append(_span_us(replays[name], device))
    return {name: statistics.median(values[2:]) for name, values in spans.items()}


def _span_us(work: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    start_ns = time.perf_counter_ns()
    work()
    _wait(device)
    return (time.perf_counter_ns() - start_ns) * 1e-3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _capture(work: Callable[[], Any], device: torch.device, calls: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return graph
