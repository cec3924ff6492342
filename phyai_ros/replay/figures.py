"""The numbers of a replay under the names that they have in report.json, in tables and in requirements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phyai_core.metrics import jerk
from phyai_core.timing import Roofline
from phyai_core.types import Action
from phyai_ros.replay.action_log import ActionLog
from phyai_ros.replay.log_findings import beyond_limits
from phyai_ros.replay.replay_run import ReplayResult
from phyai_ros.settings import Limits


def describe_result(result: ReplayResult, limits: Limits) -> dict[str, Any]:
    """Everything about one replay but its findings; NaN where unknown."""
    values: dict[str, Any] = {
        "scenario": result.scenario.describe(),
        **_motion(result, limits),
        "timing": _timing(result),
        "comparison": result.comparison.to_dict() if result.comparison else None,
    }
    if result.parity is not None:
        values["parity"] = {**vars(result.parity), "exact": result.parity.exact}
    return values


def _motion(result: ReplayResult, limits: Limits) -> dict[str, Any]:
    log, counters = result.log, result.counters
    ticks = len(log.ticks)
    actions = [line.action for line in log.ticks]
    _, rows = log.rows()
    seams = [line.timing.seam for line in log.chunks if not math.isnan(line.timing.seam)]
    usual = np.abs(np.diff(rows, n=2, axis=0)).max(axis=1) if len(rows) > 2 else np.array([])
    return {
        "ticks": ticks,
        "run_ticks": actions.count(Action.RUN),
        "hold_ticks": actions.count(Action.HOLD),
        "stop_ticks": actions.count(Action.STOP),
        "holds": _count_stretches(log, Action.HOLD),
        "stops": counters.stops,
        "starved_ticks": counters.starved_ticks,
        "chunks": counters.chunks,
        "chunks_discarded": counters.chunks_discarded,
        "chunks_rejected": counters.chunks_rejected,
        "chunks_expired": counters.chunks_expired,
        "chunks_limited": result.limited.chunks,
        "policy_errors": counters.policy_errors,
        "out_of_limit_rows": sum(len(rows) for _, _, rows in beyond_limits(log, limits)),
        "seam": {"mean": _mean(seams), "p99": _percentile(seams, 99), "max": max(seams, default=math.nan)},
        "step_between_rows": {"p50": _percentile(usual, 50), "p99": _percentile(usual, 99)},
        "jerk": _jerk(log),
    }


def _count_stretches(log: ActionLog, action: Action) -> int:
    return sum(line.action is action for line, _ in log.stretches())


def _jerk(log: ActionLog) -> float:
    """RMS over unbroken stretches of rows."""
    squares = []
    rows: list[Any] = []
    for line in [*log.ticks, None]:
        if line is not None and line.row is not None:
            rows.append(line.row)
        elif rows:
            if len(rows) > 3:
                squares.append((jerk(np.array(rows), log.dt_s) ** 2, len(rows) - 3))
            rows = []
    total = sum(count for _, count in squares)
    return math.sqrt(sum(square * count for square, count in squares) / total) if total else math.nan


def _timing(result: ReplayResult) -> dict[str, Any]:
    timings = [line.timing for line in result.log.chunks]
    inference = [timing.l_inference.seconds for timing in timings]
    control = [timing.l_control.seconds for timing in timings]
    env_s = timings[0].l_env if timings else math.nan
    point = Roofline(env_s, _percentile(inference, 50), _percentile(control, 50))
    slow = Roofline(env_s, _percentile(inference, 99), _percentile(control, 99))
    return {
        "l_env": env_s,
        "l_inference": {"p50": point.l_inference, "p99": slow.l_inference},
        "l_control": {"p50": point.l_control, "p99": slow.l_control},
        "action_age": _percentile([timing.action_age for timing in timings], 50),
        "x": point.x,
        "x_p99": slow.x,
        "y": point.y,
        "bound": point.bound,
        "delay_counted_max": max((timing.delay_counted for timing in timings), default=0),
        "feasible": all(timing.feasible for timing in timings),
    }


def flatten(values: Any, prefix: str = "") -> dict[str, float]:
    """{dotted name: number} of all numbers and truths in nested values; entries of lists by their `name`."""
    if isinstance(values, bool):
        return {prefix: float(values)}
    if isinstance(values, (int, float)):
        return {prefix: float(values)}
    if isinstance(values, Mapping):
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, (list, tuple)):
        items = [(str(v.get("name")), v) for v in values if isinstance(v, Mapping) and "name" in v]
    else:
        return {}
    flat: dict[str, float] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return flat


def plain(values: Any) -> Any:
    """For JSON: NaN becomes null, numbers are rounded to 9 digits, tuples become lists."""
    if isinstance(values, Mapping):
        return {str(key): plain(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [plain(value) for value in values]
    if isinstance(values, float):
        return float(f"{values:.9g}") if math.isfinite(values) else None
    return values


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _percentile(values: Any, percent: float) -> float:
    known = np.array([value for value in values if not math.isnan(value)])
    return float(np.percentile(known, percent)) if len(known) else math.nan
