"""Device times of work that is captured into a CUDA graph and replayed."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of `work`, warmed up first."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def replay_times(work: Callable[[], object], runs: int = 50, pause_s: float = 0.0) -> dict[str, float]:
    """{"p50", "p99"} in microseconds of one graph replay.

    Without a pause before them, long runs of large products are slowed by the card's power limit.
    """
    graph = capture(work)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    time.sleep(pause_s)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    spans = sorted(a.elapsed_time(b) * 1e3 for a, b in itertools.pairwise(marks))
    return {"p50": round(statistics.median(spans), 2), "p99": round(spans[int(0.99 * (runs - 1))], 2)}


def kernel_times(work: Callable[[], object], runs: int = 3) -> dict[str, dict[str, float]]:
    """Per kernel of a graph replay: launches, microseconds of one, milliseconds of all, by the profiler."""
    graph = capture(work)
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(runs):
            graph.replay()
        torch.cuda.synchronize()
    spans: dict[str, list[float]] = {}
    for event in profile.events():
        spans.setdefault(event.name[:50], []).append(event.time_range.elapsed_us())
    return {
        name: {"launches": len(us) / runs, "us": round(statistics.mean(us), 2), "ms": round(sum(us) / runs / 1e3, 3)}
        for name, us in spans.items()
        if us[0] > 0
    }
