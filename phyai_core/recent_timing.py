"""Control time over the last chunks, at the median and at the 99th percentile, and whether the delay fits in.

A median says how it runs, a 99th percentile what to plan for: both latencies as long as that percentile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phyai_core.delay import check_feasible
from phyai_core.timing import UNKNOWN, ChunkTiming, How, Ring, roofline_at

CHUNKS = 256  # kept; about a minute and a half at 0.32 s a chunk


@dataclass(frozen=True)
class TimingSummary:
    """Field names are those of msg/PolicyStatus. Seconds; NaN while nothing is known."""

    l_env: float
    l_inference_p50: float = math.nan
    l_inference_p99: float = math.nan
    l_control_p50: float = math.nan
    l_control_p99: float = math.nan
    l_critical_p50: float = math.nan
    l_critical_p99: float = math.nan
    x_p50: float = math.nan
    x_p99: float = math.nan
    y_p50: float = math.nan
    y_p99: float = math.nan
    bound: str = "unknown"
    margin_p50: float = math.nan
    margin_p99: float = math.nan
    feasible: bool = True  # d <= s <= H - d, d the p99 of the counted delays


class RecentTiming:
    """`push` is for the control thread, `summarise` for any other, which may see a chunk less."""

    def __init__(self, action_horizon: int, execution_horizon: int, dt_s: float) -> None:
        self._action_horizon, self._s_min = action_horizon, execution_horizon
        self._l_env_s = execution_horizon * dt_s
        self._l_inference, self._l_control = Ring(CHUNKS), Ring(CHUNKS)
        self._l_critical, self._delay = Ring(CHUNKS), Ring(CHUNKS)

    def push(self, timing: ChunkTiming) -> None:
        """A term that is unknown for this chunk is left out, not counted as 0.

        The way to the first effect counts once the robot's lag is measured: without it, it is another, shorter one.
        """
        critical = UNKNOWN if timing.l_effect.how is How.UNKNOWN else timing.l_critical
        terms = ((self._l_inference, timing.l_inference), (self._l_control, timing.l_control))
        for ring, term in (*terms, (self._l_critical, critical)):
            if not math.isnan(term.seconds):
                ring.push(term.seconds)
        self._delay.push(timing.delay_counted)

    def clear(self) -> None:
        for ring in (self._l_inference, self._l_control, self._l_critical, self._delay):
            ring.clear()

    def summarise(self) -> TimingSummary:
        points = [roofline_at(self._l_env_s, self._l_inference, self._l_control, q) for q in (0.5, 0.99)]
        critical = self._l_critical.percentiles((50.0, 99.0))
        values = {"l_inference": [p.l_inference for p in points], "l_control": [p.l_control for p in points]}
        values |= {"l_critical": critical, "x": [p.x for p in points], "y": [p.y for p in points]}
        values |= {"margin": [p.margin for p in points]}
        named = {f"{name}_p{q}": float(v) for name, pair in values.items() for q, v in zip((50, 99), pair, strict=True)}
        return TimingSummary(l_env=self._l_env_s, bound=points[0].bound, feasible=self._is_feasible(), **named)

    def _is_feasible(self) -> bool:
        delay = self._delay.percentiles((99.0,))[0]
        return math.isnan(delay) or check_feasible(self._action_horizon, self._s_min, math.ceil(delay)) is None
