"""How long work takes on a device: medians, on a GPU of replays of a graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def time_us(work: Callable[[], Any], device: torch.device, runs: int = 15, calls: int = 10) -> float:
    """Median microseconds of one call; on a GPU of `calls` captured in a graph, so that launching does not count."""
    if device.type != "cuda":
        return statistics.median(_spans_us(work, _nothing, runs))
    graph = _capture(work, device, calls)
    return statistics.median(_spans_us(graph.replay, torch.cuda.synchronize, runs)) / calls


def _spans_us(work: Callable[[], Any], wait: Callable[[], Any], runs: int) -> list[float]:
    spans = []
    for _ in range(runs + 2):
        wait()
        start_ns = time.perf_counter_ns()
        work()
        wait()
        spans.append((time.perf_counter_ns() - start_ns) * 1e-3)
    return spans[2:]


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


def _nothing() -> None:
    """A CPU call has ended when it returns."""
