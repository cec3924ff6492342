"""The inference thread's half of an executor: it takes a request, computes a chunk, posts the result.

One inference is under way at most, the flight of this epoch. What the control thread launches waits here until the
inference thread takes it; what is posted waits here until a tick adopts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from phyai_core.chunks import find_chunk_fault
from phyai_core.execution import Counters
from phyai_core.types import ActionChunk, Fault, InferenceRequest, PolicySpec, Reason

Infer = Callable[[InferenceRequest], ActionChunk]
Guard = Callable[[ActionChunk, InferenceRequest], "Fault | None"]


@dataclass
class Flight:
    """The one inference of this epoch that is under way."""

    request: InferenceRequest
    first: bool  # nothing was executing at launch: enters at row 0, says nothing about the delay
    previous_base: int | None
    emitted: int = 0  # actions emitted since the tick of row 0, that tick included
    ready: ActionChunk | None = None
    ready_ns: int = 0


class InferenceSide:
    """Methods without a leading underscore are for the inference thread; the others expect the lock to be held."""

    def __init__(
        self, spec: PolicySpec, infer: Infer, guard: Guard | None, now_ns: Callable[[], int], hang_after_s: float
    ) -> None:
        self.spec = spec
        self._hang_after_s = hang_after_s
        self.counters = Counters()
        self._infer, self._guard, self._now_ns = infer, guard, now_ns
        self._changed = Condition()
        self._pending: InferenceRequest | None = None  # launched, not yet taken by the inference thread
        self._running: InferenceRequest | None = None  # taken and not finished, perhaps of an older epoch
        self._flight: Flight | None = None
        self._result_fault: Fault | None = None  # why the last inference of this epoch gave no chunk

    @property
    def busy(self) -> bool:
        """Whether a request waits or is being computed."""
        return self._running is not None or self._pending is not None

    def wait_for_request(self, timeout_s: float) -> bool:
        """Block until a request is pending, at most `timeout_s`. True when there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending is not None, timeout_s)

    def step_inference(self) -> bool:
        """Run the pending request to its end. False when there was none."""
        request = self.take_request()
        if request is None:
            return False
        self.post(request, self.compute(request))
        return True

    def take_request(self) -> InferenceRequest | None:
        """The pending request, which counts as running from now on; None where there is none."""
        with self._changed:
            request, self._pending = self._pending, None
            self._running = request or self._running
            return request

    def compute(self, request: InferenceRequest) -> ActionChunk | Fault:
        """The chunk, or a fault: the policy is foreign code, and whatever it raises, the robot keeps its contract."""
        try:
            return self._infer(request)
        except Exception as error:
            return Fault(Reason.POLICY_ERROR, f"policy raised {type(error).__name__}: {error}")

    def post(self, request: InferenceRequest, result: ActionChunk | Fault) -> None:
        """Hand over the result of `request`; adopted at the next tick unless its epoch is over or it is refused."""
        failed = isinstance(result, Fault)
        fault = result if failed else self._refuse(result, request)
        with self._changed:
            self.counters.policy_errors += failed
            self.counters.chunks_rejected += fault is not None and not failed
            self._running = None
            if self._flight is None or self._flight.request is not request:
                self.counters.chunks_discarded += fault is None
            elif fault is not None:
                self._flight, self._result_fault = None, fault
            else:
                self._flight.ready, self._flight.ready_ns = result, self._now_ns()

    def _refuse(self, chunk: ActionChunk, request: InferenceRequest) -> Fault | None:
        fault = find_chunk_fault(chunk, self.spec)
        if fault is not None or self._guard is None:
            return fault
        try:
            return self._guard(chunk, request)
        except Exception as error:  # what cannot be judged is not executed
            return Fault(Reason.INTERNAL, f"the check of the chunk raised {type(error).__name__}: {error}")

    def _take_off(self, flight: Flight) -> None:
        self._flight, self._pending = flight, flight.request
        self._changed.notify_all()

    def _cancel_flight(self) -> None:
        """The epoch is over: nothing of it will be adopted."""
        if self._flight is not None and self._flight.ready is not None:
            self.counters.chunks_discarded += 1
        self._flight = self._pending = self._result_fault = None

    def _hung(self, now_ns: int) -> Fault | None:
        request = self._running or self._pending
        running_s = 0.0 if request is None else (now_ns - request.launch_ns) * 1e-9
        if running_s <= self._hang_after_s:
            return None
        return Fault(Reason.POLICY_ERROR, f"inference has not returned for {running_s:.1f} s")
