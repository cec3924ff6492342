"""Pictures of recorded control time: roofline, waterfall, histograms, timeline. Latencies in ms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from phyai_core.timing import How
from phyai_ros.control_time_words import STAGES
from phyai_ros.plots import GREY, STYLE
from phyai_ros.report.runs import TimingRun
from phyai_ros.roofline_plot import draw_roof
from phyai_ros.run_record import known_values

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#882255")
GROUP_COLOURS = {"input": "#0072B2", "inference": "#D55E00", "actuation": "#009E73"}
STATE_COLOURS = {"running": "#0072B2", "disabled": "#DDDDDD", "waiting": "#E69F00", "holding": "#E69F00"}
STOPPED = "#D55E00"
DISTRIBUTIONS = (
    ("l_inference", "inference"),
    ("l_control", "launch to launch"),
    ("l_critical", "exposure to effect"),
    ("l_queue", "queue"),
    ("action_age", "age of the first action"),
    ("tick_error", "tick error"),
)


def draw_roofline(runs: Sequence[TimingRun]) -> Figure:
    """Each run at its median, a thin line to its 99th percentile. Circles overlap inference, triangles do not."""
    points = [(run, run.point(50.0), run.point(99.0)) for run in runs]
    known = [x for _, *pair in points for point in pair if not math.isnan(x := point.x)]
    left, right = min([0.1, *(0.6 * x for x in known)]), max([10.0, *(1.6 * x for x in known)])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        axes = figure.subplots()
        draw_roof(axes, left, right)
        for index, (run, median, tail) in enumerate(points):
            _draw_run(axes, run, median, tail, COLOURS[index % len(COLOURS)])
        axes.set(xscale="log", xlim=(left, right), ylim=(0, 1.15))
        axes.set_xlabel("X = executed window / inference time   (L_env / L_inference)")
        axes.set_ylabel("Y = executed window / control time   (L_env / L_control)")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _draw_run(axes: Axes, run: TimingRun, median, tail, colour: str) -> None:
    if math.isnan(median.x) or math.isnan(median.y):
        return
    if not math.isnan(tail.x) and not math.isnan(tail.y):
        axes.plot([median.x, tail.x], [median.y, tail.y], color=colour, linewidth=1, alpha=0.5, zorder=4)
        axes.plot(tail.x, tail.y, marker="|", color=colour, markersize=8, alpha=0.5, zorder=4)
    label = f"{run.label}: X {median.x:.2f}, Y {median.y:.2f}"
    marker = "o" if run.overlap else "^"
    axes.plot(median.x, median.y, marker, color=colour, markeredgecolor="white", markersize=9, zorder=5, label=label)


def draw_waterfall(run: TimingRun) -> Figure:
    """Each stage begins where the one before ends, at the median; the whisker is its 99th percentile."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.0), layout="constrained")
        axes = figure.subplots()
        start_ms = 0.0
        for row, (name, _, group) in enumerate(STAGES):
            start_ms = _draw_stage(axes, run, row, name, GROUP_COLOURS[group], start_ms)
        axes.set_yticks(range(len(STAGES)), [label for _, label, _ in STAGES])
        axes.margins(x=0.12)
        axes.set(ylim=(len(STAGES) - 0.4, -0.6), xlim=(0, None), xlabel="time since exposure (ms)")
        axes.grid(axis="x", color="#E5E5E5")
        axes.set_axisbelow(True)
        groups = [Patch(color=colour, label=name) for name, colour in GROUP_COLOURS.items()]
        bounded = Patch(facecolor="white", edgecolor=GREY, hatch="////", label="bounded, not measured")
        axes.legend(handles=[*groups, bounded], loc="upper right", fontsize=8)
    return figure


def _draw_stage(axes: Axes, run: TimingRun, row: int, name: str, colour: str, start_ms: float) -> float:
    p50_ms, p99_ms = (1e3 * run.quantile(f"l_{name}", percent) for percent in (50.0, 99.0))
    if math.isnan(p50_ms):
        axes.text(start_ms, row, " unknown", va="center", color=GREY, style="italic", fontsize=8)
        return start_ms
    hatch = "////" if How.BOUNDED in run.columns.get(f"l_{name}_how", ()) else None
    axes.barh(row, p50_ms, left=start_ms, color=colour, hatch=hatch, edgecolor="white", height=0.65)
    axes.plot([start_ms + p50_ms, start_ms + p99_ms], [row, row], color=GREY, linewidth=1)
    axes.plot(start_ms + p99_ms, row, "|", color=GREY, markersize=7)
    axes.text(start_ms + max(p50_ms, p99_ms), row, f"  {p50_ms:.2f} / {p99_ms:.2f}", va="center", fontsize=8)
    return start_ms + p50_ms


def draw_histograms(run: TimingRun) -> Figure:
    """How each latency is distributed over the chunks; lines at the median and the 99th percentile."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        for panel, (name, title) in zip(figure.subplots(2, 3).flat, DISTRIBUTIONS, strict=True):
            values_ms = 1e3 * known_values(run.columns, name)
            panel.set_title(f"{title} (ms)", fontsize=9)
            panel.tick_params(labelsize=8)
            if not values_ms.size:
                panel.text(0.5, 0.5, "unknown", ha="center", transform=panel.transAxes, color=GREY)
                panel.set(xticks=[], yticks=[])
                continue
            panel.hist(values_ms, bins=min(40, max(8, values_ms.size // 4)), color="#56B4E9")
            for percent, style in ((50, "-"), (99, "--")):
                panel.axvline(np.percentile(values_ms, percent), color="black", linewidth=1, linestyle=style)
    return figure


def draw_timeline(run: TimingRun) -> Figure:
    """Inference and cycle of each chunk over the run, and below what the robot did, with the reasons of holds."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.4), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [4, 1]})
        for name, colour, label in (
            ("l_inference", "#D55E00", "inference"),
            ("l_control", "#0072B2", "launch to launch"),
        ):
            column = 1e3 * run.columns.get(name, np.full(len(run.times_s), math.nan))
            upper.plot(run.times_s, column, ".", color=colour, markersize=4, label=label)
        upper.axhline(1e3 * run.quantile("l_env", 50.0), color="black", linewidth=1, label="executed window")
        upper.set(ylabel="ms", ylim=(0, None))
        upper.legend(fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
        _draw_spans(lower, run)
        lower.set_xlabel("time (s)")
    return figure


def _draw_spans(axes: Axes, run: TimingRun) -> None:
    axes.set_yticks([])
    if not run.spans:
        axes.text(
            0.5,
            0.5,
            "what the robot did was not recorded",
            ha="center",
            va="center",
            transform=axes.transAxes,
            color=GREY,
        )
        return
    shown: dict[str, str] = {}
    for span in run.spans:
        colour = STATE_COLOURS.get(span.state, STOPPED)
        axes.axvspan(span.start_s, span.end_s, color=colour, linewidth=0)
        why = span.state if span.state in ("running", "disabled") else f"{span.state}: {span.reason}"
        shown.setdefault(why, colour)
    handles = [Patch(color=colour, label=why) for why, colour in shown.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.9), ncols=4, fontsize=8)
