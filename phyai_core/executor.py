"""RtcExecutor: overlaps inference of the next chunk with execution of the current one.

Tick k: adopt a finished chunk; maybe launch inference; emit exactly one command. A chunk launched at tick k has base k:
its row i belongs to tick k + i. The entry row of a new chunk is the count of actions emitted since its launch, never a
wall-clock estimate (Real-Time Chunking, arXiv 2506.07339; as in its simulation code, row 0 belongs to the tick of the
observation).

`tick` belongs to the control thread, `step_inference` to the inference thread; both share state under one short lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any

import numpy as np

from phyai_core.baselines import cross_fade
from phyai_core.chunks import find_chunk_fault
from phyai_core.delay import DelayForecast, explain_degradation
from phyai_core.execution import Counters, ExecutorConfig
from phyai_core.metrics import seam
from phyai_core.types import (
    Action,
    ActionChunk,
    Adoption,
    Command,
    Fault,
    FloatArray,
    InferenceRequest,
    Leftover,
    PolicySpec,
    Reason,
)

LAUNCH_MARGIN_TICKS = 1  # launch this much before the last moment that the forecast allows
OVERDUE_RATIO = 2  # an inference that takes so many times its forecast counts as failed where rows run out
RAN_OUT = "the chunk ran out before the next one was ready"


@dataclass
class _Flight:
    """The one inference of this epoch that is under way."""

    request: InferenceRequest
    first: bool  # nothing was executing at launch: enters at row 0, says nothing about the delay
    previous_base: int | None
    emitted: int = 0  # actions emitted since the tick of row 0, that tick included
    ready: ActionChunk | None = None
    ready_ns: int = 0


class RtcExecutor:
    """Chunk in, one command per tick out. See `phyai_core.types.Action` for what the commands mean.

    `infer` turns a request into a chunk and may raise; `guard` may refuse a finite, well-shaped chunk with a Fault.
    `fit`, where set, makes a chunk fit to what is executing now, in the tick that adopts it, or refuses it.
    """

    def __init__(
        self,
        spec: PolicySpec,
        config: ExecutorConfig,
        infer: Callable[[InferenceRequest], ActionChunk],
        guard: Callable[[ActionChunk, InferenceRequest], Fault | None] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ):
        self.spec, self.config = spec, config
        self.fit: Callable[[ActionChunk, int, int], ActionChunk | Fault] | None = None  # (chunk, entry row, tick)
        self.counters = Counters()
        self._infer, self._guard, self._now_ns = infer, guard, now_ns
        self._forecast = DelayForecast(
            config.delay_window, config.delay_quantile, config.delay_initial, config.delay_spike_ratio
        )
        self._blended = np.array([feature.name not in config.blend_exclude for feature in spec.action])
        self._hold_limit_ticks = max(1, round(config.hold_limit_s / spec.dt_s))
        self._changed = Condition()
        self._epoch = self._seq = 0
        self._pending: InferenceRequest | None = None  # launched, not yet taken by the inference thread
        self._running: InferenceRequest | None = None  # taken and not finished, perhaps of an older epoch
        self._rows: list[FloatArray] = []  # the last two emitted
        self._stopped: Fault | None = Fault(Reason.FIRST_CHUNK, "waiting for the first chunk")
        self._never_ran = True
        self._clear()

    def _clear(self) -> None:
        self._chunk: ActionChunk | None = None
        self._cursor = 0  # next row of the chunk
        self._base: int | None = None  # launch tick of the newest chunk or flight
        self._flight: _Flight | None = None
        self._pending = None
        self._held_ticks = 0
        self._result_fault: Fault | None = None  # why the last inference of this epoch gave no chunk
        self._input_fault: Fault | None = None

    # --- control thread ----------------------------------------------------------------------------------------------

    def tick(self, k: int, now_ns: int, obs: Any | None, fault: Fault | None = None, missed: int = 0) -> Command:
        """One control period. `obs` None: nothing fit to launch with. `fault`: hold, then stop, and drop the epoch.

        `missed` are ticks lost since the last call on an output that advanced by itself: their rows count as emitted.
        Never blocks beyond the lock, never raises on any input of the declared types.
        """
        with self._changed:
            self.counters.ticks += 1
            self._skip(missed)
            fault = fault or self._hung(now_ns)
            if fault is not None:
                return self._suspend(k, fault)
            self._input_fault = None
            adoption = self._adopt(k)
            if obs is not None and self._should_launch():
                self._launch(k, now_ns, obs)
                if self.config.instant:
                    self.step_inference()
                    adoption = self._adopt(k) or adoption
            return self._emit(k, adoption, obs is not None)

    def _skip(self, missed: int) -> None:
        self.counters.missed_ticks += missed
        if self._chunk is not None:
            advanced = min(missed, len(self._chunk.actions) - self._cursor)
            self._cursor += advanced
            if self._flight is not None:
                self._flight.emitted += advanced

    def _hung(self, now_ns: int) -> Fault | None:
        request = self._running or self._pending
        if request is None:
            return None
        running_s = (now_ns - request.launch_ns) * 1e-9
        if running_s <= self.config.hang_after_s:
            return None
        return Fault(Reason.POLICY_ERROR, f"inference has not returned for {running_s:.1f} s")

    def _suspend(self, k: int, fault: Fault) -> Command:
        """A fault drops what was planned at once: what follows it starts from a fresh observation."""
        if self._input_fault is None:
            self._raise_epoch()
        self._input_fault = fault
        return self._rest(k, fault)

    def _adopt(self, k: int) -> Adoption | None:
        flight = self._flight
        if flight is None or flight.ready is None:
            return None
        self._flight = None
        delay = k - flight.request.base_tick
        if not flight.first:
            self._forecast.push(delay)
            self.counters.chunks_late += delay > flight.request.delay_forecast
        entry = 0 if flight.first else max(0, flight.emitted if self.config.late_policy == "consumed" else delay)
        if entry >= len(flight.ready.actions):
            self.counters.chunks_expired += 1
            return None
        left = 0 if self._chunk is None else len(self._chunk.actions) - self._cursor
        chunk = self._join(flight.ready, entry)
        chunk = chunk if self.fit is None else self.fit(chunk, entry, k)
        if isinstance(chunk, Fault):
            self.counters.chunks_rejected += 1
            self._result_fault = chunk
            return None
        self._chunk, self._cursor = chunk, entry
        self._result_fault = None
        self.counters.chunks += 1
        interval = 0 if flight.previous_base is None else flight.request.base_tick - flight.previous_base
        seam = self._seam(self._chunk.actions[entry])
        return Adoption(flight.request, flight.ready_ns, entry, delay, interval, left, seam)

    def _join(self, chunk: ActionChunk, entry: int) -> ActionChunk:
        if self._chunk is None or not self.config.blend_ticks:
            return chunk
        tail = self._chunk.actions[self._cursor :]
        faded = cross_fade(tail, chunk.actions, entry, self.config.blend_ticks, self._blended)
        return replace(chunk, actions=faded)

    def _seam(self, row: FloatArray) -> float:
        if len(self._rows) < 2:
            return float("nan")
        return seam(self._rows[-2], self._rows[-1], row)

    def _should_launch(self) -> bool:
        if self._flight is not None or self._running is not None:
            return False
        if self._chunk is None or self._cursor >= self.config.execution_horizon:
            return True
        if self.config.mode == "sync" or not self.config.launch_early:
            return False
        return self._cursor >= len(self._chunk.actions) - self._forecast.forecast() - LAUNCH_MARGIN_TICKS

    def _launch(self, k: int, now_ns: int, obs: Any) -> None:
        """Leftover, cursor, observation and forecast are taken here together: the prefix cannot slip by a row."""
        delay, offset = self._forecast.forecast(), self.config.obs_index_offset
        if self.config.mode == "sync":
            self._chunk = None
        leftover, first = None, self._cursor + offset  # row 0 of the new chunk stands for this row of the old one
        if self._chunk is not None and first < len(self._chunk.actions):
            leftover = Leftover(
                latent=self._chunk.latent[first:],
                actions=self._chunk.actions[first:],
                delay=delay,
                execution_horizon=first,
            )
        request = InferenceRequest(self._epoch, self._seq, k + offset, now_ns, obs, leftover, delay)
        self._seq += 1
        self._flight = _Flight(request, first=self._chunk is None, previous_base=self._base, emitted=-offset)
        self._base = request.base_tick
        self._pending = request
        self._changed.notify_all()

    def _emit(self, k: int, adoption: Adoption | None, has_obs: bool) -> Command:
        chunk = self._chunk
        if chunk is not None and self._given_up(k):
            self._cursor = len(chunk.actions)
        if chunk is None or self._cursor >= len(chunk.actions):
            return self._starve(k, has_obs)
        index, self._cursor = self._cursor, self._cursor + 1
        if self._flight is not None:
            self._flight.emitted += 1
        self._stopped, self._never_ran, self._held_ticks = None, False, 0
        row = chunk.actions[index]
        self._rows = [*self._rows[-1:], row]
        return Command(Action.RUN, k, self._epoch, row=row, chunk=chunk, index=index, adoption=adoption)

    def _given_up(self, k: int) -> bool:
        """After a policy fault: no chunk can come in time. Then braking begins while the path still goes on."""
        forecast, left = self._forecast.forecast(), len(self._chunk.actions) - self._cursor
        due = k + forecast
        if self._flight is not None:
            base = self._flight.request.base_tick
            if k - base > OVERDUE_RATIO * forecast:
                overdue = Fault(Reason.STARVED, f"{RAN_OUT}: {k - base} ticks and no result, {forecast} were expected")
                self._result_fault = self._result_fault or overdue
            else:
                due = base + forecast
        return self._result_fault is not None and left <= max(due - k, 1)

    def _starve(self, k: int, has_obs: bool) -> Command:
        """No row for this tick. In sync mode the wait for inference is the mode itself and has no limit."""
        if self.config.mode == "sync" and self._flight is not None and self._stopped is None:
            self._rows = []
            self.counters.hold_ticks += 1
            return Command(Action.HOLD, k, self._epoch, Reason.SYNC_WAIT, "sync mode waits for inference")
        self.counters.starved_ticks += self._chunk is not None
        return self._rest(k, self._result_fault or self._explain_wait(has_obs))

    def _explain_wait(self, has_obs: bool) -> Fault:
        if self._chunk is not None:
            return Fault(Reason.STARVED, RAN_OUT)
        if not has_obs and self._flight is None:
            return Fault(Reason.WAITING_INPUT, "waiting for a fresh set of inputs")
        return Fault(Reason.FIRST_CHUNK, "waiting for the first chunk")

    def _rest(self, k: int, fault: Fault) -> Command:
        """HOLD up to the limit, then STOP; NONE where this executor has never moved the robot."""
        self._rows = []
        if self._stopped is None:
            self._held_ticks += 1
            if self._held_ticks <= self._hold_limit_ticks:
                self.counters.hold_ticks += 1
                return Command(Action.HOLD, k, self._epoch, fault.reason, fault.text)
            self._stop(fault)
        action = Action.NONE if self._never_ran else Action.STOP
        return Command(action, k, self._epoch, fault.reason, fault.text)

    def _stop(self, fault: Fault) -> None:
        self.counters.stops += 1
        self._raise_epoch()
        self._stopped = fault

    def _raise_epoch(self) -> None:
        self._epoch += 1
        if self._flight is not None and self._flight.ready is not None:
            self.counters.chunks_discarded += 1
        held, fault = self._held_ticks, self._input_fault
        self._clear()
        self._held_ticks, self._input_fault = held, fault

    # --- inference thread --------------------------------------------------------------------------------------------

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
        if isinstance(result, Fault):
            with self._changed:
                self.counters.policy_errors += 1
                self._finish(request, None, result)
            return
        fault = find_chunk_fault(result, self.spec) or (self._guard(result, request) if self._guard else None)
        with self._changed:
            self.counters.chunks_rejected += fault is not None
            self._finish(request, None if fault else result, fault)

    def _finish(self, request: InferenceRequest, chunk: ActionChunk | None, fault: Fault | None) -> None:
        self._running = None
        if self._flight is None or self._flight.request is not request:
            self.counters.chunks_discarded += chunk is not None
        elif chunk is None:
            self._flight, self._result_fault = None, fault
        else:
            self._flight.ready, self._flight.ready_ns = chunk, self._now_ns()

    # --- any thread --------------------------------------------------------------------------------------------------

    def reset(self, reason: Reason, text: str) -> None:
        """Start a new epoch: drop every chunk and result, brake if moving, wait for a chunk born after this call.

        The delays counted so far still hold for the new epoch: its second chunk needs a true forecast already.
        """
        with self._changed:
            self._raise_epoch()
            self._held_ticks = 0
            self._stopped = Fault(reason, text)

    def restart(self, reason: Reason, text: str) -> None:
        """A reset that also forgets what was counted: for a new activation."""
        self.reset(reason, text)
        with self._changed:
            self.counters = Counters()
            self._forecast.reset()
            self._never_ran = True

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def launches(self) -> int:
        """Inferences launched since construction; the next request has this `seq`."""
        return self._seq

    @property
    def delay_forecast(self) -> int:
        """Inference delay d expected for the next launch, ticks."""
        return self._forecast.forecast()

    @property
    def degradation(self) -> str | None:
        """What the delay forecast forces on the configured execution, as a sentence; None while it can be kept."""
        if self.config.mode in ("sync", "ensemble", "instant"):
            return None
        trained = self.spec.rtc_max_delay if self.config.mode == "trained" else None
        return explain_degradation(
            self.spec.action_horizon, self.config.execution_horizon, self.delay_forecast, trained
        )

    @property
    def rows_left(self) -> int:
        """Rows of the running chunk not yet emitted."""
        with self._changed:
            return 0 if self._chunk is None else len(self._chunk.actions) - self._cursor
