"""From an adopted chunk to its control time: which stamps bound which term (docs/design.md, control time).

One per executor; used by the control thread only.
"""

from __future__ import annotations

import math

from phyai_core.delay import check_feasible
from phyai_core.execution import Counters
from phyai_core.timing import UNKNOWN, ChunkTiming, Term, bounded, measured
from phyai_core.types import ActionChunk, Adoption, Command, PolicySpec, Source


class Timekeeper:
    """Turns the command that adopted a chunk into its `ChunkTiming`. `execution_horizon` is s_min in ticks."""

    def __init__(self, spec: PolicySpec, execution_horizon: int) -> None:
        self._horizon = spec.action_horizon
        self._s_min = execution_horizon
        self._l_env_s = execution_horizon * spec.dt_s
        self._last_launch: tuple[int, int] = (-1, 0)  # epoch, steady ns
        self._tick_error_max_s = 0.0

    def note_tick(self, tick_error_s: float) -> None:
        self._tick_error_max_s = max(self._tick_error_max_s, abs(tick_error_s))

    def close(
        self, command: Command, counters: Counters, published_ns: int, stamp_ns: int, tick_error_s: float
    ) -> ChunkTiming:
        """Timing of the chunk that `command` adopted; `published_ns` (steady) is when its first effect went out."""
        chunk, adoption = command.chunk, command.adoption
        request = adoption.request
        realised = adoption.execution_horizon or self._s_min
        timing = ChunkTiming(
            epoch=chunk.epoch,
            seq=chunk.seq,
            l_env=self._l_env_s,
            **_time_observation(chunk.sources, request.launch_ns),
            **_time_inference(chunk, adoption),
            l_actuate=bounded((published_ns - adoption.ready_ns) * 1e-9),
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
        )
        self._tick_error_max_s = 0.0
        return timing

    def _time_interval(self, epoch: int, launch_ns: int) -> Term:
        """L_control; unknown for the first chunk of an epoch, whose wait belongs to nobody."""
        last_epoch, last_ns = self._last_launch
        self._last_launch = (epoch, launch_ns)
        return measured((launch_ns - last_ns) * 1e-9) if epoch == last_epoch else UNKNOWN


def _time_observation(sources: tuple[Source, ...], launch_ns: int) -> dict[str, Term]:
    """The way of the oldest sample. Without a publish time, the whole way to our callback bounds L_observe."""
    stamped = [source for source in sources if source.stamp_ns and source.arrival_stamp_ns]
    if not stamped:
        return {}
    oldest = min(stamped, key=lambda source: source.stamp_ns)
    queue = measured((launch_ns - oldest.arrival_ns) * 1e-9)
    if not oldest.published_stamp_ns:
        way_s = (oldest.arrival_stamp_ns - oldest.stamp_ns) * 1e-9
        return {"l_observe": bounded(way_s), "l_transfer": bounded(0.0), "l_queue": queue}
    return {
        "l_observe": measured((oldest.published_stamp_ns - oldest.stamp_ns) * 1e-9),
        "l_transfer": measured((oldest.arrival_stamp_ns - oldest.published_stamp_ns) * 1e-9),
        "l_queue": queue,
    }


def _time_inference(chunk: ActionChunk, adoption: Adoption) -> dict[str, Term]:
    stages = chunk.stages_s
    preprocess_s = stages.get("preprocess", math.nan) + stages.get("decode", 0.0)
    return {
        "l_inference": measured((adoption.ready_ns - adoption.request.launch_ns) * 1e-9),
        "l_preprocess": measured(preprocess_s),
        "l_vision": measured(stages.get("vision")),
        "l_prefix": measured(stages.get("prefix")),
        "l_denoise": measured(stages.get("denoise")),
        "l_postprocess": measured(stages.get("postprocess")),
    }
