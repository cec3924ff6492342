"""The report on control time: figures as JSON, sentences, one HTML page and PNG files."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phyai_core.timing import Roofline
from phyai_ros.control_time_words import (
    STAGES,
    count_robots,
    describe_dominant,
    describe_factors,
    describe_regime,
    describe_robots,
)
from phyai_ros.replay.report_html import STYLE, render_figure, render_table
from phyai_ros.report.figures import draw_histograms, draw_roofline, draw_timeline, draw_waterfall
from phyai_ros.report.runs import TimingRun

PNG_DPI = 150
CAPTIONS = {
    "roofline": "Control-time roofline: median, and a line to the 99th percentile. Triangles: the robot waits.",
    "waterfall": "From exposure to effect: medians one after the other, with median / 99th percentile in ms.",
    "histograms": "Distribution over chunks; lines at the median and (dashed) the 99th percentile.",
    "timeline": "Each chunk over time, and below what the robot did.",
}


def write_report(runs: Sequence[TimingRun], folder: Path, made: str) -> list[Path]:
    """report.html, report.json and the pictures into `folder`; of several runs only what compares them."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"roofline": draw_roofline(runs)}
    if len(runs) == 1:
        more = {"waterfall": draw_waterfall, "histograms": draw_histograms, "timeline": draw_timeline}
        figures |= {name: draw(runs[0]) for name, draw in more.items()}
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path, dpi=PNG_DPI)
    page, data = folder / "report.html", folder / "report.json"
    page.write_text(_render(runs, figures, made), encoding="utf-8")
    data.write_text(json.dumps({"runs": [describe_run(run) for run in runs]}, indent=1, allow_nan=False) + "\n")
    return [page, data, *paths]


def describe_run(run: TimingRun) -> dict[str, Any]:
    """The figures of one run, seconds; null where unknown."""
    median, tail = run.point(50.0), run.point(99.0)
    latencies = ("l_critical", "l_inference", "l_control", "l_env", *(f"l_{name}" for name, *_ in STAGES))
    seconds = {f"{name}_p{q}": _known(run.quantile(name, q)) for name in latencies for q in (50, 99)}
    return {
        "run": run.label,
        "rtc_mode": run.rtc_mode or None,
        "chunks": len(run.times_s),
        "bound": median.bound,
        **{
            f"{name}_p{q}": _known(getattr(p, name))
            for q, p in ((50, median), (99, tail))
            for name in ("x", "y", "margin")
        },
        "y_expected": _known(median.y_expected(run.overlap)),
        "on_curve": None if math.isnan(median.y) else median.is_on_curve(run.overlap, run.dt_s),
        "robots": count_robots(median.l_env, tail.l_inference),
        **seconds,
        "words": explain_run(run),
    }


def explain_run(run: TimingRun) -> list[str]:
    """The paragraph in words."""
    median = run.point(50.0)
    medians = {name: run.quantile(f"l_{name}", 50.0) for name, *_ in STAGES}
    tail_s = run.quantile("l_inference", 99.0)
    texts = [describe_regime(median), describe_dominant(medians), describe_factors(median, run.overlap)]
    texts += [describe_robots(median.l_env, tail_s), _judge_tail(median, run.point(99.0))]
    return [text for text in texts if text]


def _judge_tail(median: Roofline, tail: Roofline) -> str:
    if median.bound != "environment" or tail.bound != "inference":
        return ""
    return "At the 99th percentile inference takes longer than the executed window: the tail is the limit."


def _render(runs: Sequence[TimingRun], figures: dict[str, Any], made: str) -> str:
    title = f"Control time of {runs[0].label}" if len(runs) == 1 else f"Control time of {len(runs)} runs"
    words = "".join(f"<p>{html.escape(text)}</p>" for text in explain_run(runs[0])) if len(runs) == 1 else ""
    grade = "look" if any(run.point().bound == "inference" for run in runs) else "pass"
    pictures = "".join(
        f"<h2>{name.capitalize()}</h2>{render_figure(figure, CAPTIONS[name])}" for name, figure in figures.items()
    )
    table = _render_stages(runs[0]) if len(runs) == 1 else _render_runs(runs)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>"
        f'<div class="verdict {grade}"><h1>{html.escape(title)}</h1>{words}</div>'
        f'{pictures}<h2>Figures</h2>{table}<h2>About this report</h2><div class="small">{html.escape(made)}</div>'
        "</body></html>\n"
    )


def _render_stages(run: TimingRun) -> str:
    rows = [("whole way", "critical"), ("inference", "inference"), ("launch to launch", "control"), ("window", "env")]
    rows += [(f"· {label}", name) for name, label, _ in STAGES]
    cells = [(label, *(1e3 * run.quantile(f"l_{name}", q) for q in (50.0, 99.0, 100.0))) for label, name in rows]
    return render_table(("stage", "p50 (ms)", "p99 (ms)", "max (ms)"), cells)


def _render_runs(runs: Sequence[TimingRun]) -> str:
    head = ("run", "mode", "chunks", "inference p50 (ms)", "X", "Y", "Y of its curve", "on the curve", "bound by")
    rows = []
    for run in runs:
        point, figures = run.point(), describe_run(run)
        on_curve = {True: "yes", False: "no", None: ""}[figures["on_curve"]]
        expected = point.y_expected(run.overlap)
        rows.append(
            (
                run.label,
                run.rtc_mode,
                len(run.times_s),
                1e3 * point.l_inference,
                point.x,
                point.y,
                expected,
                on_curve,
                point.bound,
            )
        )
    return render_table(head, rows)


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
