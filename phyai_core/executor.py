"""RtcExecutor: overlaps inference of the next chunk with execution of the current one.

Tick k: adopt a finished chunk; maybe launch inference; emit exactly one command. A chunk launched at tick k has base k:
its row i belongs to tick k + i. The entry row of a new chunk is the count of actions emitted since its launch, never a
wall-clock estimate (Real-Time Chunking, arXiv 2506.07339; as in its simulation code, row 0 belongs to the tick of the
observation).

`tick` belongs to the control thread and is here; what the inference thread calls is in `inference_side.py`. Both share
state under one short lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from phyai_core.delay import DelayForecast, explain_degradation
from phyai_core.execution import Counters, ExecutorConfig
from phyai_core.inference_side import Flight, Guard, Infer, InferenceSide
from phyai_core.running_chunk import RunningChunk
from phyai_core.types import Action, ActionChunk, Adoption, Command, Fault, InferenceRequest, PolicySpec, Reason

LAUNCH_MARGIN_TICKS = 1  # launch this much before the last moment that the forecast allows
OVERDUE_RATIO = 2  # an inference that takes so many times its forecast counts as failed where rows run out
RAN_OUT = "the chunk ran out before the next one was ready"


class RtcExecutor(InferenceSide):
    """Chunk in, one command per tick out. See `phyai_core.types.Action` for what the commands mean.

    `infer` turns a request into a chunk and may raise; `guard` may refuse a finite, well-shaped chunk with a Fault.
    `fit`, where set, makes a chunk fit to what is executing now, in the tick that adopts it, or refuses it.
    """

    def __init__(
        self,
        spec: PolicySpec,
        config: ExecutorConfig,
        infer: Infer,
        guard: Guard | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ):
        super().__init__(spec, infer, guard, now_ns, config.hang_after_s)
        self.config = config
        self.fit: Callable[[ActionChunk, int, int], ActionChunk | Fault] | None = None  # (chunk, entry row, tick)
        self._forecast = DelayForecast(
            config.delay_window, config.delay_quantile, config.delay_initial, config.delay_spike_ratio
        )
        self._blended = np.array([feature.name not in config.blend_exclude for feature in spec.action])
        self._hold_limit_ticks = max(1, round(config.hold_limit_s / spec.dt_s))
        self._epoch = self._seq = 0
        self._executing = RunningChunk()
        self._base: int | None = None  # launch tick of the newest chunk or flight
        self._held_ticks = 0
        self._input_fault: Fault | None = None
        self._stopped: Fault | None = Fault(Reason.FIRST_CHUNK, "waiting for the first chunk")
        self._never_ran = True

    # --- control thread ----------------------------------------------------------------------------------------------

    def tick(self, k: int, now_ns: int, obs: Any | None, fault: Fault | None = None, missed: int = 0) -> Command:
        """One control period. `obs` None: nothing fit to launch with. `fault`: hold, then stop, and drop the epoch.

        `missed` are ticks lost since the last call on an output that advanced by itself: their rows count as emitted.
        Never blocks beyond the lock, never raises on any input of the declared types. In mode instant it infers, too.
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
        skipped = self._executing.skip(missed)
        if self._flight is not None:
            self._flight.emitted += skipped

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
        left = self._executing.left
        chunk = self._executing.fade_into(flight.ready, entry, self.config.blend_ticks, self._blended)
        chunk = chunk if self.fit is None else self.fit(chunk, entry, k)
        if isinstance(chunk, Fault):
            self.counters.chunks_rejected += 1
            self._result_fault = chunk
            return None
        self._executing.swap(chunk, entry)
        self._result_fault = None
        self.counters.chunks += 1
        interval = 0 if flight.previous_base is None else flight.request.base_tick - flight.previous_base
        seam = self._executing.seam_to(chunk.actions[entry])
        return Adoption(flight.request, flight.ready_ns, entry, delay, interval, left, seam)

    def _should_launch(self) -> bool:
        if self._flight is not None or self._running is not None:
            return False
        if self._executing.chunk is None or self._executing.cursor >= self.config.execution_horizon:
            return True
        if self.config.mode == "sync" or not self.config.launch_early:
            return False
        return self._executing.left <= self._forecast.forecast() + LAUNCH_MARGIN_TICKS

    def _launch(self, k: int, now_ns: int, obs: Any) -> None:
        """Leftover, cursor, observation and forecast are taken here together: the prefix cannot slip by a row."""
        delay, offset = self._forecast.forecast(), self.config.obs_index_offset
        if self.config.mode == "sync":
            self._executing.drop()
        leftover = self._executing.leftover(offset, delay)  # row 0 of the new chunk stands for its first row
        request = InferenceRequest(self._epoch, self._seq, k + offset, now_ns, obs, leftover, delay)
        self._seq += 1
        self._take_off(Flight(request, self._executing.chunk is None, previous_base=self._base, emitted=-offset))
        self._base = request.base_tick

    def _emit(self, k: int, adoption: Adoption | None, has_obs: bool) -> Command:
        if self._executing.chunk is not None and self._given_up(k):
            self._executing.skip_all()
        if not self._executing.left:
            return self._starve(k, has_obs)
        row, index = self._executing.emit()
        if self._flight is not None:
            self._flight.emitted += 1
        self._stopped, self._never_ran, self._held_ticks = None, False, 0
        return Command(Action.RUN, k, self._epoch, row=row, chunk=self._executing.chunk, index=index, adoption=adoption)

    def _given_up(self, k: int) -> bool:
        """After a policy fault: no chunk can come in time. Then braking begins while the path still goes on."""
        forecast = self._forecast.forecast()
        due = k + forecast
        if self._flight is not None:
            base = self._flight.request.base_tick
            if k - base > OVERDUE_RATIO * forecast:
                overdue = Fault(Reason.STARVED, f"{RAN_OUT}: {k - base} ticks and no result, {forecast} were expected")
                self._result_fault = self._result_fault or overdue
            else:
                due = base + forecast
        return self._result_fault is not None and self._executing.left <= max(due - k, 1)

    def _starve(self, k: int, has_obs: bool) -> Command:
        """No row for this tick. In sync mode the wait for inference is the mode itself and has no limit."""
        if self.config.mode == "sync" and self._flight is not None and self._stopped is None:
            self._executing.rest()
            self.counters.hold_ticks += 1
            return Command(Action.HOLD, k, self._epoch, Reason.SYNC_WAIT, "sync mode waits for inference")
        self.counters.starved_ticks += self._executing.chunk is not None
        return self._rest(k, self._result_fault or self._explain_wait(has_obs))

    def _explain_wait(self, has_obs: bool) -> Fault:
        if self._executing.chunk is not None:
            return Fault(Reason.STARVED, RAN_OUT)
        if not has_obs and self._flight is None:
            return Fault(Reason.WAITING_INPUT, "waiting for a fresh set of inputs")
        return Fault(Reason.FIRST_CHUNK, "waiting for the first chunk")

    def _rest(self, k: int, fault: Fault) -> Command:
        """HOLD up to the limit, then STOP; NONE where this executor has never moved the robot."""
        self._executing.rest()
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
        self._cancel_flight()
        self._executing.drop()
        self._base = None

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
        """Inferences launched since construction; the next request has this `seq`. Only a replay sets it."""
        return self._seq

    @launches.setter
    def launches(self, count: int) -> None:
        self._seq = count

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
            return self._executing.left
