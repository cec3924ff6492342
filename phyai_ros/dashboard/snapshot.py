"""From what was seen of a node to what the page gets: plain JSON, numbers rounded, unknown ones null."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from phyai_core.timing import How, Roofline
from phyai_ros.control_time_words import STAGES, describe_regime, describe_robots
from phyai_ros.dashboard.feed import Seen, stamp_s
from phyai_ros.msg import ControlTiming, PolicyMetadata, PolicyStatus

COUNTERS = ("chunks", "starved_ticks", "missed_ticks", "hold_ticks", "stops", "chunks_discarded", "chunks_rejected")
COUNTERS += ("policy_errors",)
PROVENANCE = {How.UNKNOWN: "unknown", How.BOUNDED: "bounded", How.MEASURED: "measured"}


def make_snapshot(seen: Seen, policy: str, commands_after: int = 0, points_after: int = 0) -> dict[str, Any]:
    """Everything the page draws. Of commands and points only those after the counts that the page has already."""
    return {
        "node": policy,
        "silent_s": known(time.monotonic() - seen.status_at_s),
        "policy": None if seen.metadata is None else describe_policy(seen.metadata),
        "status": None if seen.status is None else describe_status(seen.status),
        "words": describe_words(seen.status),
        "stages": describe_stages(seen.timings),
        "last": None if not seen.timings else describe_chunk_time(seen.timings[-1]),
        "points": [[known(t.x), known(t.y)] for t in _after(seen.timings, seen.timing_count, points_after)],
        "point_count": seen.timing_count,
        "commands": [
            [round(stamp_s(c), 4), *(round(p, 4) for p in c.position)]
            for c in _after(seen.commands, seen.command_count, commands_after)
        ],
        "command_count": seen.command_count,
        "swaps": [round(at_s, 4) for at_s in list(seen.swaps_s)[-20:]],
        "chunk": None if seen.chunk is None else describe_chunk(seen.chunk),
        "events": [vars(event) for event in reversed(seen.events)],
    }


def describe_policy(metadata: PolicyMetadata) -> dict[str, Any]:
    facts = ("policy", "adapter", "device", "placement", "rtc_mode", "action_horizon", "execution_horizon", "dt")
    return {
        **{name: getattr(metadata, name) for name in facts},
        "checkpoint": metadata.checkpoint_hash[:12] or "shipped",
        "config": metadata.config_hash[:12],
        "joints": list(metadata.joint_names),
        "units": list(metadata.action_units),
        "cameras": list(metadata.camera_keys),
    }


def describe_status(status: PolicyStatus) -> dict[str, Any]:
    values = {name: getattr(status, name) for name in ("state", "reason", "text", "prompt", "epoch", "tick", "bound")}
    numbers = [name for name, kind in status.get_fields_and_field_types().items() if kind == "double"]
    values |= {name: known(getattr(status, name)) for name in numbers}
    values |= {name: getattr(status, name) for name in ("rows_left", "delay_forecast", "feasible", *COUNTERS)}
    columns = (status.input_names, status.input_ages, status.input_clock_offsets, status.input_clock_drifts)
    values["inputs"] = [
        {"name": name, "age_s": known(age_s), "offset_s": known(offset_s), "drift": known(drift)}
        for name, age_s, offset_s, drift in zip(*columns, strict=True)
    ]
    return values


def describe_words(status: PolicyStatus | None) -> list[str]:
    """Sentences on the regime, at the median."""
    if status is None:
        return []
    point = Roofline(status.l_env, status.l_inference_p50, status.l_control_p50)
    delay = "" if status.feasible else "The counted delays do not fit: d <= s <= H - d is violated."
    return [
        text for text in (describe_regime(point), describe_robots(status.l_env, status.l_inference_p99), delay) if text
    ]


def describe_stages(timings: Iterable[ControlTiming]) -> list[dict[str, Any]]:
    """Each stage over the chunks seen: last, p50, p99 in seconds, and how the last one was obtained."""
    timings = list(timings)
    if not timings:
        return []
    stages = []
    for name, label, group in STAGES:
        column = [value for t in timings if not math.isnan(value := getattr(t, f"l_{name}"))]
        p50, p99 = np.percentile(column, (50, 99)) if column else (math.nan, math.nan)
        how = PROVENANCE[How(getattr(timings[-1], f"l_{name}_how"))]
        last = known(getattr(timings[-1], f"l_{name}"))
        stages.append(
            {
                "name": name,
                "label": label,
                "group": group,
                "how": how,
                "last": last,
                "p50": known(p50),
                "p99": known(p99),
            }
        )
    return stages


def describe_chunk_time(timing: ControlTiming) -> dict[str, Any]:
    names = ("l_critical", "l_inference", "l_actuate", "l_control", "l_env", "seam", "action_age")
    counts = ("delay_predicted", "delay_counted", "execution_horizon", "entry_row", "queue_left")
    how = PROVENANCE[How(timing.l_critical_how)]
    values = {name: known(getattr(timing, name)) for name in names}
    return {**values, **{name: getattr(timing, name) for name in counts}, "l_critical_how": how}


def describe_chunk(chunk: Any) -> dict[str, Any]:
    """The rows still ahead when it was adopted; the first one belongs to the tick at `start_s`."""
    rows = np.reshape(chunk.actions, (chunk.rows, chunk.columns))[chunk.entry_row :]
    return {"start_s": round(stamp_s(chunk), 4), "dt": chunk.dt, "rows": np.round(rows, 4).tolist()}


def known(value: float) -> float | None:
    """For JSON, which has neither NaN nor infinity."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _after(items: Sequence[Any], count: int, after: int) -> list[Any]:
    """The last `count - after` items; all that are kept where the reader's count is from another time."""
    new = count - after
    return list(items)[-new:] if 0 < new <= len(items) else ([] if new == 0 else list(items))
