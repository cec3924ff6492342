"""Time in a replay: a clock that is moved by hand, and the inference thread that lives on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from phyai_core.executor import RtcExecutor
from phyai_core.types import ActionChunk, Fault, InferenceRequest
from phyai_ros.replay.bag_types import NS_PER_S
from phyai_ros.replay.latency import Latency
from phyai_ros.tick_trace import TracedTick

ALL = 1 << 30  # sub-ticks: as many as the output wants


class LogicalClock:
    """ROS time and steady time at once, in nanoseconds."""

    def __init__(self, start_ns: int) -> None:
        self.ns = start_ns

    def now_ns(self) -> int:
        return self.ns


class UniformTicks:
    """Tick k is due at `start_ns` + k periods, as on a control loop that is never late."""

    def __init__(self, start_ns: int, period_ns: int) -> None:
        self.period_ns = period_ns
        self._start_ns = start_ns

    def first(self) -> TracedTick:
        return TracedTick(0, self._start_ns, sub_ticks=ALL)

    def after(self, tick: TracedTick) -> TracedTick:
        """The tick that follows; numbers in between are those that were missed."""
        return TracedTick(tick.tick + 1, tick.deadline_ns + self.period_ns, sub_ticks=ALL)


@dataclass(frozen=True)
class Inference:
    """One inference of a replay. `measured_s` and `stages_s` are wall time on this machine, the rest is logical."""

    request: InferenceRequest
    latency_s: float
    measured_s: float
    stages_s: dict[str, float]
    failed: str = ""  # what the policy raised


def without_inputs(request: InferenceRequest) -> InferenceRequest:
    """To be kept: pictures of every inference of a long bag would fill the memory."""
    return replace(request, obs=None, leftover=None)


class LogicalInference:
    """The inference thread of a logical clock, to the nanosecond: a result is posted `latency` after its launch.

    `hear(inference)` is told of each, when it is launched.
    """

    def __init__(
        self, executor: RtcExecutor, clock: LogicalClock, latency: Latency, hear: Callable[[Inference], None]
    ) -> None:
        self._executor, self._clock, self._latency, self._hear = executor, clock, latency, hear
        self._under_way: tuple[InferenceRequest, ActionChunk | Fault] | None = None
        self.due_ns: int | None = None  # when the result of the inference under way is posted

    def launch(self) -> None:
        """After a tick: compute at once what it asked for; the result waits until it is due."""
        request = self._executor.take_request()
        if request is None:
            return
        started_ns = time.perf_counter_ns()
        result = self._executor.compute(request)
        measured_s = (time.perf_counter_ns() - started_ns) / NS_PER_S
        latency_s = self._latency(request, measured_s)
        failed = result.text if isinstance(result, Fault) else ""
        stages_s = {} if isinstance(result, Fault) else dict(result.stages_s)
        self._hear(Inference(without_inputs(request), latency_s, measured_s, stages_s, failed))
        if isinstance(result, ActionChunk):
            result = replace(result, stages_s={})  # wall time has no place in a logical replay
        self._under_way = (request, result)
        self.due_ns = self._clock.ns + round(latency_s * NS_PER_S)

    def post(self) -> None:
        """When it is due: hand over the result."""
        (request, result), self._under_way, self.due_ns = self._under_way, None, None
        self._executor.post(request, result)
