"""From an adopted chunk to its control time: which stamps bound which term (docs/design.md, control time).

One per executor; used by the control thread only.
"""

from __future__ import annotations

import math
from typing import Any

from phyai_core.actuation_lag import ActuationLag, Lag
from phyai_core.delay import check_feasible
from phyai_core.execution import Counters
from phyai_core.recent_timing import RecentTiming
from phyai_core.timing import UNKNOWN, ChunkTiming, Term, bounded, measured
from phyai_core.types import Action, ActionChunk, Adoption, Command, PolicySpec, Source

PARTS = ("decode", "preprocess", "vision", "prefix", "denoise", "postprocess")
CLOCKS_AGREE_S = 1e-3  # parts that exceed the whole by more were not timed by the clock of the whole (a replay)


class Timekeeper:
    """Turns the command that adopted a chunk into its `ChunkTiming`. `execution_horizon` is s_min in ticks."""

    def __init__(self, spec: PolicySpec, execution_horizon: int) -> None:
        self._horizon = spec.action_horizon
        self._s_min = execution_horizon
        self._l_env_s = execution_horizon * spec.dt_s
        self._last_launch: tuple[int, int] = (-1, 0)  # epoch, steady ns
        self._tick_error_max_s = 0.0
        self._dt_ns = round(spec.dt_s * 1e9)
        self.lag = ActuationLag(spec.action_dim, spec.dt_s)
        self.recent = RecentTiming(spec.action_horizon, execution_horizon, spec.dt_s)

    def begin(self) -> None:
        """A new activation: nothing seen before counts, except how far the robot follows behind."""
        self.lag.clear()
        self.recent.clear()
        self._last_launch, self._tick_error_max_s = (-1, 0), 0.0

    def note_tick(self, tick_error_s: float) -> None:
        self._tick_error_max_s = max(self._tick_error_max_s, abs(tick_error_s))

    def note_motion(self, command: Command, stamp_ns: int, obs: Any | None) -> None:
        """What the tick at `stamp_ns` (ROS time) commanded, and what its observation says of the joints.

        `obs` has `measured` [A] and `sources`, the last one the joints'; None where the tick had none.
        """
        if command.action is not Action.RUN:
            self.lag.clear()
            return
        self.lag.note_command(stamp_ns + self._dt_ns, command.row)  # a row is reached at the end of its tick
        if obs is not None and obs.sources:
            self.lag.note_state(obs.sources[-1].stamp_ns, obs.measured)

    def close(
        self, command: Command, counters: Counters, published_ns: int, stamp_ns: int, tick_error_s: float
    ) -> ChunkTiming:
        """Timing of the chunk that `command` adopted; `published_ns` (steady) is when its first effect went out."""
        chunk, adoption = command.chunk, command.adoption
        request = adoption.request
        realised = adoption.execution_horizon or self._s_min
        lag = self.lag.latest
        timing = ChunkTiming(
            epoch=chunk.epoch,
            seq=chunk.seq,
            l_env=self._l_env_s,
            **_time_observation(chunk.sources, request.launch_ns),
            **_time_inference(chunk, adoption),
            l_adopt=measured((published_ns - adoption.ready_ns) * 1e-9),
            l_effect=measured(lag.seconds) if lag.is_measured else UNKNOWN,
            actuation_confidence=lag.confidence,
            l_control=self._time_interval(chunk.epoch, request.launch_ns),
            delay_predicted=request.delay_forecast,
            delay_counted=adoption.delay_counted,
            execution_horizon=adoption.execution_horizon,
            entry_row=adoption.entry_row,
            queue_left=adoption.queue_left,
            feasible=check_feasible(self._horizon, realised, adoption.delay_counted) is None,
            seam=adoption.seam,
            action_age=(stamp_ns - chunk.obs_stamp_ns) * 1e-9,
            tick_error=tick_error_s,
            tick_error_max=self._tick_error_max_s,
            missed_ticks=counters.missed_ticks,
            starved_ticks=counters.starved_ticks,
            chunks=counters.chunks,
            chunks_discarded=counters.chunks_discarded,
            chunks_rejected=counters.chunks_rejected,
            stamps=_stamp_events(chunk.sources, adoption, published_ns, lag),
        )
        self.recent.push(timing)
        self._tick_error_max_s = 0.0
        return timing

    def _time_interval(self, epoch: int, launch_ns: int) -> Term:
        """L_control; unknown for the first chunk of an epoch, whose wait belongs to nobody."""
        last_epoch, last_ns = self._last_launch
        self._last_launch = (epoch, launch_ns)
        return measured((launch_ns - last_ns) * 1e-9) if epoch == last_epoch else UNKNOWN


def _time_observation(sources: tuple[Source, ...], launch_ns: int) -> dict[str, Term]:
    """The way of the oldest sample. Without a publish time, the whole way to our callback bounds L_observe."""
    oldest = _find_oldest(sources)
    if oldest is None:
        return {}
    queue = measured((launch_ns - oldest.arrival_ns) * 1e-9)
    if not oldest.published_stamp_ns:
        way_s = (oldest.arrival_stamp_ns - oldest.stamp_ns) * 1e-9
        return {"l_observe": bounded(way_s), "l_transfer": bounded(0.0), "l_queue": queue}
    return {
        "l_observe": measured((oldest.published_stamp_ns - oldest.stamp_ns) * 1e-9),
        "l_transfer": measured((oldest.arrival_stamp_ns - oldest.published_stamp_ns) * 1e-9),
        "l_queue": queue,
    }


def _find_oldest(sources: tuple[Source, ...]) -> Source | None:
    stamped = [source for source in sources if source.stamp_ns and source.arrival_stamp_ns]
    return min(stamped, key=lambda source: source.stamp_ns) if stamped else None


def _stamp_events(sources: tuple[Source, ...], adoption: Adoption, published_ns: int, lag: Lag) -> dict[str, int]:
    """ROS time of each event: steady times, laid against the one instant that both clocks saw, the arrival."""
    oldest = _find_oldest(sources)
    if oldest is None:
        return {}
    steady = {"launched": adoption.request.launch_ns, "ready": adoption.ready_ns, "published": published_ns}
    if lag.is_measured:
        steady["effective"] = published_ns + round(lag.seconds * 1e9)
    offset_ns = oldest.arrival_stamp_ns - oldest.arrival_ns
    seen = {"exposed": oldest.stamp_ns, "arrived": oldest.arrival_stamp_ns}
    return seen | {name: at_ns + offset_ns for name, at_ns in steady.items()}


def _time_inference(chunk: ActionChunk, adoption: Adoption) -> dict[str, Term]:
    """The whole by our own clock; its parts as the policy measured them, and the rest that no part accounts for."""
    whole_s = (adoption.ready_ns - adoption.request.launch_ns) * 1e-9
    parts_s = {name: chunk.stages_s[name] for name in PARTS if name in chunk.stages_s}
    rest_s = whole_s - math.fsum(parts_s.values())
    known = parts_s and rest_s > -CLOCKS_AGREE_S
    terms = {f"l_{name}": measured(seconds) for name, seconds in parts_s.items()}
    return terms | {"l_inference": measured(whole_s), "l_other": measured(max(0.0, rest_s)) if known else UNKNOWN}
