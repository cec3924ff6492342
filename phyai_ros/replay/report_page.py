"""The sections of report.html."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from phyai_ros.replay.comparison import Comparison
from phyai_ros.replay.report import Report
from phyai_ros.replay.report_figures import draw_commands, draw_data, draw_open_loop, draw_strip
from phyai_ros.replay.report_html import (
    render_figure,
    render_findings,
    render_page,
    render_quality,
    render_table,
)
from phyai_ros.replay.report_roofline import draw_roofline

ROWS = (
    ("ticks that move the robot", "run_ticks"),
    ("of all ticks", "ticks"),
    ("holds", "holds"),
    ("braking stops", "stops"),
    ("starved ticks", "starved_ticks"),
    ("chunks executed", "chunks"),
    ("chunks slowed or clipped to the limits", "chunks_limited"),
    ("chunks refused by safety", "chunks_rejected"),
    ("chunks of an old epoch dropped", "chunks_discarded"),
    ("inferences that failed", "policy_errors"),
    ("largest seam between chunks", "seam.max"),
    ("usual step change within chunks", "step_between_rows.p50"),
    ("jerk of commands, RMS", "jerk"),
    ("inference p50 (s)", "timing.l_inference.p50"),
    ("inference p99 (s)", "timing.l_inference.p99"),
    ("X  executed window / inference", "timing.x"),
    ("X at p99", "timing.x_p99"),
    ("Y  executed window / control time", "timing.y"),
    ("mean error against the recording", "comparison.mean_error"),
    ("chunk error / error of holding still", "comparison.open_loop.ratio"),
)


def write_page(report: Report, path: Path) -> None:
    """One HTML file with everything inside."""
    sections = [
        ("Requirements", _requirements(report)),
        ("Figures", _figures(report)),
        ("Findings", render_findings(report.findings)),
        *(_replay_sections(report) if report.result is not None else []),
        ("Data of the bag", render_quality(report.quality)),
        ("", _data_picture(report)),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(report.title, report.verdict, sections, report.about), encoding="utf-8")


def _replay_sections(report: Report) -> list[tuple[str, str]]:
    result = report.result
    commands = "Commands of the replay and the recording. The band says what the robot would have done."
    strip = "Pictures of the bag, and below each the chunk planned near it (change from its first row)."
    loop = "How far ahead chunks foretell the recording: error of row i, and that of holding still."
    sections = [
        ("Replayed and recorded commands", render_figure(draw_commands(result.log, result.track), commands)),
        ("What the policy saw and planned", render_figure(draw_strip(result.log, report.strip), strip)),
        ("Control time", render_figure(draw_roofline(report.figures, report.baseline), "Control-time roofline.")),
    ]
    if result.comparison is not None:
        sections.append(("Joint by joint", _joints(result.comparison)))
        picture = draw_open_loop(result.comparison.open_loop, result.log.dt_s)
        sections.append(("Chunks against holding still", render_figure(picture, loop)))
        sections.append(("Gripper", _gripper(result.comparison)))
    return sections


def _requirements(report: Report) -> str:
    rows = [(str(o.requirement), o.value, "met" if o.met else "not met") for o in report.outcomes]
    return render_table(("required", "found", ""), rows)


def _figures(report: Report) -> str:
    if report.figures is None:
        return ""
    columns = [report.figures] if report.baseline is None else [report.baseline, report.figures]
    names = [column["scenario"] for column in columns]
    rows = [(label, *(look_up(column, name) for column in columns)) for label, name in ROWS]
    return render_table(("", *names), [row for row in rows if any(not _unknown(value) for value in row[1:])])


def look_up(values: Any, name: str) -> Any:
    """The value under a dotted name in nested dictionaries; None where there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _joints(comparison: Comparison) -> str:
    loop = comparison.open_loop
    rows = []
    for index, joint in enumerate(comparison.joints):
        chunk = (loop.by_joint[index], loop.hold_last_by_joint[index]) if loop.chunks else (math.nan, math.nan)
        rows.append((joint.name, joint.mean, joint.rms, joint.p95, joint.largest, joint.lag_s, *chunk))
    head = ("joint", "mean error", "RMS", "p95", "largest", "lag (s)", "error of chunks", "of holding still")
    return render_table(head, rows)


def _gripper(comparison: Comparison) -> str:
    events = comparison.gripper
    rows = [
        (event.time_s, "closes" if event.closes else "opens", "never" if _unknown(event.offset_s) else event.offset_s)
        for event in events
    ]
    return render_table(("bag time (s)", "recorded", "replay later by (s)"), rows)


def _data_picture(report: Report) -> str:
    text = "Messages per topic over the bag; a triangle marks a finding."
    return render_figure(draw_data(report.quality, report.duration_s), text)
