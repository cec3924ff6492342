"""Recorded control time: of a bag, of a timings.jsonl, or of a demo's record, all as the same columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_core.timing import Roofline
from phyai_ros.run_record import known_values

Column = NDArray[np.float64]
TIMING_TYPE, STATUS_TYPE = "phyai_ros/msg/ControlTiming", "phyai_ros/msg/PolicyStatus"
CHUNK_TYPE = "phyai_ros/msg/ActionChunk"
KINDS_READ = (TIMING_TYPE, STATUS_TYPE, CHUNK_TYPE)
KINDS = "a rosbag2 folder, an .mcap or .db3 file, a timings.jsonl, or a run_*.npz of the demo"


@dataclass(frozen=True)
class Span:
    """A stretch of time in one state for one reason; seconds since the first message."""

    start_s: float
    end_s: float
    state: str
    reason: str


@dataclass(frozen=True)
class TimingRun:
    """C chunks. `columns` {field of ControlTiming: [C]}, NaN where unknown."""

    label: str
    times_s: Column  # [C] adoption, since the first one
    columns: Mapping[str, Column]
    spans: tuple[Span, ...] = ()
    rtc_mode: str = ""
    dt_s: float = 0.0  # control period; 0 where it is not told

    @property
    def overlap(self) -> bool:
        """Whether inference ran during execution."""
        return self.rtc_mode != "sync"

    def quantile(self, name: str, percent: float) -> float:
        """Over the chunks where it is known; NaN where it never was."""
        known = known_values(self.columns, name)
        return float(np.percentile(known, percent)) if known.size else math.nan

    def point(self, percent: float = 50.0) -> Roofline:
        """Where the run stands when both latencies are as long as that percentile."""
        return Roofline(
            self.quantile("l_env", 50.0), self.quantile("l_inference", percent), self.quantile("l_control", percent)
        )


def read_run(path: Path) -> TimingRun:
    """Raises ValueError where nothing in `path` tells control time, saying what is allowed."""
    if path.suffix == ".jsonl":
        return _read_lines(path)
    if path.suffix == ".npz":
        return _read_record(path)
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        return _read_folder(path)
    return _read_bag(path)


def _read_folder(path: Path) -> TimingRun:
    found = [*sorted(path.glob("run_*.npz")), *sorted(path.glob("timings.jsonl"))]
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{path} holds {names} of run_*.npz and timings.jsonl; give one file, or {KINDS}.")
    return read_run(found[0])


def _read_lines(path: Path) -> TimingRun:
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append({name: _number(value) for name, value in json.loads(line).items()})
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path} line {number} is not a JSON object: {line[:60]!r}.") from error
    return _make_run(path, rows, [row.get("time_s", math.nan) for row in rows])


def _read_record(path: Path) -> TimingRun:
    from phyai_ros.run_record import load_record

    record = load_record(path)
    rows = [dict(zip(record.timing, values, strict=True)) for values in zip(*record.timing.values(), strict=True)]
    run = _make_run(path, rows, record.chunk_times_s)
    return replace(run, rtc_mode=record.rtc_mode or record.mode, dt_s=record.dt_s)


def _read_bag(path: Path) -> TimingRun:
    from phyai_ros.replay.bag import Bag

    with Bag(path) as bag:
        topics = {kind: [t.name for t in bag.topics.values() if t.type == kind] for kind in KINDS_READ}
        if len(topics[TIMING_TYPE]) != 1:
            found = ", ".join(topics[TIMING_TYPE]) or "none"
            raise ValueError(f"{path} holds {found} as {TIMING_TYPE}; a report needs exactly one topic of this type.")
        rows, times_s, statuses, dt_s = [], [], [], 0.0
        for message in bag.messages([*topics[TIMING_TYPE], *topics[STATUS_TYPE][:1], *topics[CHUNK_TYPE][:1]]):
            time_s = bag.since_start_s(message.log_ns)
            if message.type == TIMING_TYPE:
                rows.append({name: _number(value) for name, value in vars(message.msg).items()})
                times_s.append(time_s)
            elif message.type == STATUS_TYPE:
                statuses.append((time_s, message.msg))
            else:
                dt_s = float(message.msg.dt)
    mode = next((status.rtc_mode for _, status in statuses if status.rtc_mode), "")
    return replace(_make_run(path, rows, times_s), spans=tuple(_find_spans(statuses)), rtc_mode=mode, dt_s=dt_s)


def _find_spans(statuses: Iterable[tuple[float, Any]]) -> Iterable[Span]:
    start: tuple[float, str, str] | None = None
    time_s = 0.0
    for time_s, status in statuses:
        now = (status.state, status.reason)
        if start is None or start[1:] != now:
            if start is not None:
                yield Span(start[0], time_s, *start[1:])
            start = (time_s, *now)
    if start is not None:
        yield Span(start[0], time_s, *start[1:])


def _make_run(path: Path, rows: list[dict[str, float]], times_s: Iterable[float]) -> TimingRun:
    if not rows or "l_inference" not in rows[0]:
        raise ValueError(f"{path} holds no control time of any chunk; give {KINDS}.")
    names = [name for name, value in rows[0].items() if value is not None]
    columns = {name: np.array([row.get(name, math.nan) for row in rows], np.float64) for name in names}
    times = np.array(list(times_s), np.float64)
    return TimingRun(_name(path), times, columns)


def _name(path: Path) -> str:
    """Files of the demo are all named alike; their folder tells them apart."""
    return path.parent.name if path.suffix in (".npz", ".jsonl") else path.stem


def _number(value: Any) -> float | None:
    """None for what is no number; null is NaN."""
    if value is None:
        return math.nan
    return float(value) if isinstance(value, (bool, int, float, np.number)) else None
