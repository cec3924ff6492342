"""Pictures of runs: the commanded joint per mode, the chunks behind it, and the control-time roofline.

Colours are the Okabe-Ito set, which colour-blind people can tell apart; modes also differ in their labels. Drawn
without pyplot, so there is no display, no window and no state outside of the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phyai_ros.run_record import Episode, RunRecord

MODE_ORDER = ("sync", "none", "rtc")
MODE_COLOURS = {"sync": "#E69F00", "none": "#D55E00", "rtc": "#0072B2"}
MODE_TEXTS = {
    "sync": "sync: the arm waits for each inference",
    "none": "none: chunks are swapped as they come",
    "rtc": "rtc: each chunk continues the last one",
}
MODE_MARKERS = {"sync": "^", "none": "s", "rtc": "o"}
KEY = "circle: a new chunk takes over\ndotted: no action, the last one stands"
GREY, INFERENCE_SHADE, ENVIRONMENT_SHADE = "#555555", "#F3D9CC", "#D3E5F1"
DPI = 150
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Run:
    """A record, its summary (see cli/summary.py) and a line saying where and when it was made."""

    record: RunRecord
    summary: dict[str, Any]
    made: str

    @property
    def mode(self) -> str:
        return self.record.mode


def plot_command(runs: Sequence[Run], path: Path, joint: int = 0) -> None:
    """One panel per mode: `joint` as commanded over the first episode, swaps of chunks marked."""
    runs = [run for run in in_order(runs) if run.record.episodes and len(run.record.command_times_s)]
    if not runs:
        return
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(runs))
        for panel, run in zip(panels, runs, strict=True):
            _draw_command(panel, run, joint)
        _finish(figure, panels, runs, joint, "commanded over the first episode")
        _save(figure, path)


def plot_chunks(runs: Sequence[Run], path: Path, joint: int = 0) -> None:
    """As `plot_command`, with every chunk drawn in full: thin what it planned, thick what was executed."""
    runs = [run for run in in_order(runs) if run.record.episodes and len(run.record.chunk_times_s)]
    if not runs:
        return
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(runs))
        for panel, run in zip(panels, runs, strict=True):
            _draw_plans(panel, run, joint)
            _draw_command(panel, run, joint)
        _finish(figure, panels, runs, joint, "and the chunks it was taken from (thin: planned, not executed)")
        _save(figure, path)


def plot_roofline(runs: Sequence[Run], path: Path) -> None:
    """X = L_env / L_inference against Y = L_env / L_control, with the roof, the curve without overlap and the runs."""
    with matplotlib.rc_context(STYLE):
        figure = _figure(9.6, 4.6)
        axes = figure.subplots()
        left, right = _roofline_range(runs)
        _draw_roof(axes, left, right)
        for run in in_order(runs):
            _draw_point(axes, run)
        axes.set(xscale="log", xlim=(left, right), ylim=(0, 1.15))
        axes.set_xlabel("X = executed window / inference time   (L_env / L_inference)")
        axes.set_ylabel("Y = executed window / control time   (L_env / L_control)")
        axes.set_title("Control-time roofline: is the robot waiting for the policy?")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        figure.legend(loc="outside right upper", fontsize=9)
        _sign(figure, runs)
        _save(figure, path)


def in_order(runs: Sequence[Run]) -> list[Run]:
    """The runs in the order in which modes are told: waiting, swapping, continuing."""
    return sorted(runs, key=lambda run: MODE_ORDER.index(run.mode) if run.mode in MODE_ORDER else len(MODE_ORDER))


# --- commanded joint -------------------------------------------------------------------------------------------------


def _panels(count: int) -> tuple[Figure, np.ndarray]:
    figure = _figure(8.4, 1.4 + 2.1 * count)
    return figure, figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]


def _draw_command(panel: Axes, run: Run, joint: int) -> None:
    record, episode = run.record, run.record.episodes[0]
    inside = record.rows_within(episode)
    colour = MODE_COLOURS.get(run.mode, GREY)
    times, values = record.command_times_s - episode.start_s, record.command_rows[:, joint]
    stretches = [rows for segment in record.segments() if len(rows := np.intersect1d(segment, inside))]
    for rows in stretches:
        panel.plot(times[rows], values[rows], color=colour, linewidth=2.0, zorder=3)
    for before, after in pairwise(stretches):
        ends = [before[-1], after[0]]
        panel.plot(times[ends], values[ends], color=colour, linestyle=":", linewidth=1.4, drawstyle="steps-post")
    swaps = _swap_rows(record, episode)
    panel.plot(times[swaps], values[swaps], "o", color="white", markeredgecolor=colour, markersize=4.5, zorder=4)
    panel.set_title(f"{MODE_TEXTS.get(run.mode, run.mode)}{_figures(run.summary)}", color=colour)
    panel.grid(axis="x", color="#E5E5E5")


def _draw_plans(panel: Axes, run: Run, joint: int) -> None:
    record, episode = run.record, run.record.episodes[0]
    inside = (record.chunk_times_s >= episode.start_s) & (record.chunk_times_s <= episode.end_s)
    for index in np.flatnonzero(inside):
        entry = int(record.chunk_entry_rows[index])
        plan = record.chunk_actions[index, entry:, joint]
        times = record.chunk_times_s[index] - episode.start_s + record.dt_s * np.arange(len(plan))
        panel.plot(times, plan, color=MODE_COLOURS.get(run.mode, GREY), linewidth=0.8, alpha=0.45)


def _swap_rows(record: RunRecord, episode: Episode) -> np.ndarray:
    """Indices of the rows with which a chunk came in."""
    inside = (record.chunk_times_s >= episode.start_s) & (record.chunk_times_s <= episode.end_s)
    rows = np.searchsorted(record.command_times_s, record.chunk_times_s[inside] - 0.5 * record.dt_s)
    return rows[rows < len(record.command_times_s)]


def _figures(summary: dict[str, Any]) -> str:
    seam, jerk = (summary.get("seam_mrad") or {}).get("mean"), summary.get("jerk")
    parts = [f"{summary['successes']} of {summary['episodes']} episodes succeeded"]
    parts += [f"mean seam {seam:.0f} mrad"] if seam is not None else []
    parts += [f"jerk {jerk:.0f} rad/s³"] if jerk is not None else []
    return "\n" + ", ".join(parts)


def _finish(figure: Figure, panels: np.ndarray, runs: Sequence[Run], joint: int, what: str) -> None:
    name = runs[0].record.joint_names[joint]
    figure.suptitle(f"Base joint '{name}' {what}" if joint == 0 else f"Joint '{name}' {what}", x=0.01, ha="left")
    figure.supylabel(f"'{name}' command (rad)", fontsize=10)
    panels[-1].set_xlim(0, max(episode.end_s - episode.start_s for episode in (run.record.episodes[0] for run in runs)))
    panels[-1].set_xlabel("time since the start of the episode (s)")
    panels[0].text(1, 1.02, KEY, transform=panels[0].transAxes, ha="right", va="bottom", fontsize=8, color=GREY)
    _sign(figure, runs)


# --- roofline --------------------------------------------------------------------------------------------------------


def _roofline_range(runs: Sequence[Run]) -> tuple[float, float]:
    known = [run.summary["x"] for run in runs if run.summary["x"]]
    known += [x for run in runs if (x := x_at_p99(run.summary))]
    return min([0.1, *(0.5 * x for x in known)]), max([10.0, *(2.0 * x for x in known)])


def _draw_roof(axes: Axes, left: float, right: float) -> None:
    x = np.geomspace(left, right, 400)
    axes.axvspan(left, 1, color=INFERENCE_SHADE, alpha=0.6, linewidth=0)
    axes.axvspan(1, right, color=ENVIRONMENT_SHADE, alpha=0.6, linewidth=0)
    axes.plot(x, np.minimum(1, x), color="black", linewidth=1.8, label="roof: Y = min(1, X)")
    axes.plot(x, x / (1 + x), color=GREY, linewidth=1.4, linestyle="--", label="waiting: Y = X / (1 + X)")
    notes = (
        (np.sqrt(left), "inference-bound\na faster policy speeds up the robot"),
        (np.sqrt(right), "environment-bound\na faster policy adds margin"),
    )
    for at, text in notes:
        axes.text(at, 0.04, text, ha="center", va="bottom", color=GREY, fontsize=9)


def _draw_point(axes: Axes, run: Run) -> None:
    x, y = run.summary["x"], run.summary["y"]
    if x is None or y is None:
        return
    colour = MODE_COLOURS.get(run.mode, GREY)
    slowest = x_at_p99(run.summary)
    if slowest is not None:
        axes.plot([slowest, x], [y, y], color=colour, linewidth=1.5, marker="|", markersize=11, zorder=4)
    label = f"{run.mode}: X {x:.2f}, Y {y:.2f}" + (f"\n  X {slowest:.2f} at p99 inference (bar)" if slowest else "")
    marker, size = MODE_MARKERS.get(run.mode, "D"), 7 if run.mode == "rtc" else 11  # the small one on top of the large
    axes.plot(x, y, marker, color=colour, markeredgecolor="white", markersize=size, zorder=5, label=label)


def x_at_p99(summary: dict[str, Any]) -> float | None:
    """X when an inference takes as long as its 99th percentile."""
    env_ms, inference_ms = summary["l_env_ms"]["p50"], summary["l_inference_ms"]["p99"]
    return env_ms / inference_ms if env_ms and inference_ms else None


# --- all -------------------------------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Figure:
    """A figure, in inches, that leaves a strip at the foot for `_sign`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    strip = 0.25 / height
    figure.get_layout_engine().set(rect=(0, strip, 1, 1 - strip))
    return figure


def _sign(figure: Figure, runs: Sequence[Run]) -> None:
    delays = {run.summary.get("inject_delay_s") for run in runs} - {None}
    added = f"; inference slowed by {'/'.join(f'{delay:g}' for delay in sorted(delays))} s" if any(delays) else ""
    made = sorted({run.made for run in runs})
    figure.text(0.995, 0.002, f"{' · '.join(made)}{added}", ha="right", va="bottom", fontsize=7, color=GREY)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
