"""One run of the demo as one flat JSON object, and runs side by side as a table.

A value that was never seen is null, never 0. `l_actuate` and `l_critical` are over chunks whose effect on the robot was
measured; `chunks_without_lag` counts the others. `seam` is the largest absolute second difference over joints of the
commanded rows at a swap of chunks; `jerk` the elementwise RMS third difference / dt^3 within episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from phyai_core.timing import Roofline
from phyai_ros.run_record import RunRecord, known_values

STAGES = (
    "observe",
    "transfer",
    "queue",
    "inference",
    "preprocess",
    "vision",
    "prefix",
    "denoise",
    "postprocess",
    "actuate",
    "critical",
    "env",
    "control",
)


def summarise(record: RunRecord) -> dict[str, Any]:
    """The figures of a run under the names they have in the JSON file."""
    env_s, inference_s, control_s = (
        _percentiles(record, f"l_{stage}", (50,))[0] for stage in ("env", "inference", "control")
    )
    point = Roofline(env_s, inference_s, control_s)
    return {
        "mode": record.mode,
        "rtc_mode": record.rtc_mode or None,
        "episodes": len(record.episodes),
        "successes": sum(episode.outcome == "success" for episode in record.episodes),
        "starved_ticks": _counter(record, "starved_ticks"),
        "missed_ticks": _counter(record, "missed_ticks"),
        "tick_error_ms": _tick_errors_ms(record),
        **{f"l_{stage}_ms": _stage_ms(record, f"l_{stage}") for stage in STAGES},
        "x": _known(point.x),
        "y": _known(point.y),
        "bound": None if point.bound == "unknown" else point.bound,
        "seam_mrad": _seam_mrad(record),
        "jerk": _known(jerk_within_episodes(record)),
        "chunks_without_lag": _chunks_without_lag(record),
        "chunks": _counter(record, "chunks"),
        "epochs_discarded": _counter(record, "chunks_discarded"),
        "real_time_factor": min((episode.real_time_factor for episode in record.episodes), default=None),
    }


def jerk_within_episodes(record: RunRecord) -> float:
    """Elementwise RMS of the third difference / dt^3 over unbroken stretches of rows, units/s^3. NaN without any."""
    squares = [np.empty(0)]
    for episode in record.episodes:
        inside = record.rows_within(episode)
        for segment in record.segments():
            rows = record.command_rows[np.intersect1d(segment, inside)]
            squares.append((np.diff(rows, n=3, axis=0) / record.dt_s**3).ravel() ** 2)
    everything = np.concatenate(squares)
    return float(np.sqrt(everything.mean())) if everything.size else math.nan


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write one JSON object; NaN is refused, since JSON has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")


def make_table(summaries: Sequence[dict[str, Any]], title: str) -> Table:
    """The runs side by side, one column per mode."""
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("")
    for summary in summaries:
        table.add_column(summary["mode"], justify="right")
    for label, show in _ROWS:
        table.add_row(label, *(show(summary) for summary in summaries))
    return table


def _spread(key: str, unit: str, *parts: str):
    def show(summary: dict[str, Any]) -> str:
        values = [(summary[key] or {}).get(part) for part in parts]
        if values == [None] * len(parts):
            return "unknown"
        return " / ".join(map(_number, values)) + f" {unit}"

    return show


def _single(key: str, unit: str = ""):
    return lambda summary: f"{_number(summary[key])} {unit}".rstrip()


_ROWS = (
    ("succeeded", lambda summary: f"{summary['successes']} of {summary['episodes']}"),
    ("seam at swaps, mean / p99", _spread("seam_mrad", "mrad", "mean", "p99")),
    ("jerk of commands, RMS", _single("jerk", "rad/s³")),
    ("starved ticks", _single("starved_ticks")),
    ("missed ticks", _single("missed_ticks")),
    ("tick error, p50 / p99 / max", _spread("tick_error_ms", "ms", "p50", "p99", "max")),
    ("inference, p50 / p99", _spread("l_inference_ms", "ms", "p50", "p99")),
    ("camera to robot, p50 / p99", _spread("l_critical_ms", "ms", "p50", "p99")),
    ("  chunks left out, lag not known", _single("chunks_without_lag")),
    ("X  executed window / inference", _single("x")),
    ("Y  executed window / control time", _single("y")),
    ("bound by", lambda summary: summary["bound"] or "unknown"),
    ("simulated / real time, worst", _single("real_time_factor")),
    ("chunks executed", _single("chunks")),
    ("chunks of an old epoch dropped", _single("epochs_discarded")),
)


def _number(value: float | int | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, int) else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _percentiles(record: RunRecord, name: str, percents: tuple[float, ...]) -> list[float]:
    known = known_values(record.timing, name)
    return [float(value) for value in np.percentile(known, percents)] if known.size else [math.nan] * len(percents)


def _stage_ms(record: RunRecord, name: str) -> dict[str, float | None]:
    p50, p99 = _percentiles(record, name, (50, 99))
    return {"p50": _known(1e3 * p50), "p99": _known(1e3 * p99)}


def _chunks_without_lag(record: RunRecord) -> int | None:
    ways = record.timing.get("l_inference")
    return None if ways is None else len(ways) - len(known_values(record.timing, "l_critical"))


def _seam_mrad(record: RunRecord) -> dict[str, float | None]:
    known = known_values(record.timing, "seam")
    mean, p99 = (float(known.mean()), float(np.percentile(known, 99))) if known.size else (math.nan, math.nan)
    return {"mean": _known(1e3 * mean), "p99": _known(1e3 * p99)}


def _tick_errors_ms(record: RunRecord) -> dict[str, float | None]:
    """p50 is the median of the windows' medians, p99 and max those of the worst window."""
    windows = record.tick_errors_s[np.isfinite(record.tick_errors_s).all(axis=1)]
    if len(windows) == 0:
        return {"p50": None, "p99": None, "max": None}
    p50, p99, largest = np.median(windows[:, 0]), windows[:, 1].max(), windows[:, 2].max()
    return {"p50": _known(1e3 * p50), "p99": _known(1e3 * p99), "max": _known(1e3 * largest)}


def _counter(record: RunRecord, name: str) -> int | None:
    value = record.status.get(name)
    return None if value is None else int(value)


def _known(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
