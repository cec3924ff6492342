"""The inference thread of a logical clock: results arrive a counted number of ticks after their launch.

Stepped simulation, benchmarks and bag replay drive the very executor of the live node with it.
"""

from __future__ import annotations

from collections.abc import Callable

from phyai_core.executor import RtcExecutor
from phyai_core.types import ActionChunk, Fault, InferenceRequest


class SteppedInference:
    """Call `before_tick(k)`, then `executor.tick(k, ...)`, then `after_tick()`.

    `delay_ticks(request)` says at how many ticks after its launch a result can be adopted; at least 1, since a tick
    adopts before it launches.
    """

    def __init__(self, executor: RtcExecutor, delay_ticks: Callable[[InferenceRequest], int]):
        self._executor, self._delay_ticks = executor, delay_ticks
        self._under_way: tuple[int, InferenceRequest, ActionChunk | Fault] | None = None

    def before_tick(self, k: int) -> None:
        """Post the result that is due at tick `k`."""
        if self._under_way is not None and k >= self._under_way[0]:
            _, request, result = self._under_way
            self._under_way = None
            self._executor.post(request, result)

    def after_tick(self) -> None:
        """Compute what the last tick launched."""
        request = self._executor.take_request()
        if request is not None:
            launch_tick = request.base_tick - self._executor.config.obs_index_offset
            due = launch_tick + max(1, self._delay_ticks(request))
            self._under_way = (due, request, self._executor.compute(request))
