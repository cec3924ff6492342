"""Pictures of runs: the commanded joint per mode and the chunks behind it.

Colours are the Okabe-Ito set, which colour-blind people can tell apart; modes also differ in their labels. Drawn
without pyplot, so there is no display, no window and no state outside of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
KEY = "circle: a new chunk takes over\ndotted: no action, the last one stands"
GREY = "#555555"
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


Draw = Callable[[Axes, Run, int, int], None]  # (panel, run, joint, index of the episode)


def plot_command(runs: Sequence[Run], joint: int = 0) -> Figure | None:
    """One panel per mode: `joint` as commanded over one episode, swaps marked. None without any rows."""
    return _plot(runs, joint, "command_times_s", (_draw_command,), "commanded over {episode}")


def plot_chunks(runs: Sequence[Run], joint: int = 0) -> Figure | None:
    """As `plot_command`, with every chunk drawn in full: thin what it planned, thick what was executed."""
    what = "and its chunks (thin: planned, not executed) in {episode}"
    return _plot(runs, joint, "chunk_times_s", (_draw_plans, _draw_command), what)


def _plot(runs: Sequence[Run], joint: int, needed: str, draw: Sequence[Draw], what: str) -> Figure | None:
    """A panel for each run whose column `needed` is not empty, made by every function of `draw`."""
    runs = [run for run in in_order(runs) if run.record.episodes and len(getattr(run.record, needed))]
    if not runs:
        return None
    index, which = pick_episode(runs, joint)
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(runs))
        for panel, run in zip(panels, runs, strict=True):
            for draw_into in draw:
                draw_into(panel, run, joint, index)
        _finish(figure, panels, runs, joint, index, what.format(episode=which))
    return figure


def pick_episode(runs: Sequence[Run], joint: int) -> tuple[int, str]:
    """The episode to show, the same for all modes, and how to call it: where swapping chunks jerked most, or the first.

    That one shows what the modes differ in; the figures in the titles are those of all episodes.
    """
    swapping = next((run for run in runs if run.mode == "none"), None)
    if swapping is None or len(runs) == 1:
        return 0, "the first episode"
    roughness = [
        _largest_second_difference(swapping.record.command_rows[swapping.record.rows_within(episode), joint])
        for episode in swapping.record.episodes[: min(len(run.record.episodes) for run in runs)]
    ]
    index = int(np.argmax(roughness))
    return index, f"episode {swapping.record.episodes[index].number}, where swapping chunks jerked most"


def _largest_second_difference(values: np.ndarray) -> float:
    return float(np.abs(np.diff(values, 2)).max()) if len(values) > 2 else 0.0


def in_order(runs: Sequence[Run]) -> list[Run]:
    """The runs in the order in which modes are told: waiting, swapping, continuing."""
    return sorted(runs, key=lambda run: MODE_ORDER.index(run.mode) if run.mode in MODE_ORDER else len(MODE_ORDER))


def _panels(count: int) -> tuple[Figure, np.ndarray]:
    figure = new_figure(8.4, 1.4 + 2.1 * count)
    return figure, figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]


def _draw_command(panel: Axes, run: Run, joint: int, index: int) -> None:
    record, episode = run.record, run.record.episodes[index]
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
    if len(inside):
        end = (times[inside[-1]], values[inside[-1]])
        panel.annotate(
            episode.outcome,
            end,
            (0, 11),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour,
            fontsize=9,
        )
    panel.set_title(f"{MODE_TEXTS.get(run.mode, run.mode)}{_figures(run.summary)}", color=colour)
    panel.grid(axis="x", color="#E5E5E5")


def _draw_plans(panel: Axes, run: Run, joint: int, index: int) -> None:
    record, episode = run.record, run.record.episodes[index]
    inside = (record.chunk_times_s >= episode.start_s) & (record.chunk_times_s <= episode.end_s)
    for chunk in np.flatnonzero(inside):
        entry = int(record.chunk_entry_rows[chunk])
        plan = record.chunk_actions[chunk, entry:, joint]
        times = record.chunk_times_s[chunk] - episode.start_s + record.dt_s * np.arange(len(plan))
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


def _finish(figure: Figure, panels: np.ndarray, runs: Sequence[Run], joint: int, index: int, what: str) -> None:
    name = runs[0].record.joint_names[joint]
    figure.suptitle(f"Base joint '{name}' {what}" if joint == 0 else f"Joint '{name}' {what}", x=0.01, ha="left")
    figure.supylabel(f"'{name}' command (rad)", fontsize=10)
    panels[-1].set_xlim(
        0, max(episode.end_s - episode.start_s for episode in (run.record.episodes[index] for run in runs))
    )
    panels[-1].set_xlabel("time since the start of the episode (s)")
    panels[0].text(1, 1.02, KEY, transform=panels[0].transAxes, ha="right", va="bottom", fontsize=8, color=GREY)
    sign(figure, runs)


def new_figure(width: float, height: float) -> Figure:
    """A figure, in inches, that leaves a strip at the foot for `sign`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    strip = 0.25 / height
    figure.get_layout_engine().set(rect=(0, strip, 1, 1 - strip))
    return figure


def sign(figure: Figure, runs: Sequence[Run]) -> None:
    delays = {run.summary.get("inject_delay_s") for run in runs} - {None}
    added = f"; inference slowed by {'/'.join(f'{delay:g}' for delay in sorted(delays))} s" if any(delays) else ""
    made = sorted({run.made for run in runs})
    figure.text(0.995, 0.002, f"{' · '.join(made)}{added}", ha="right", va="bottom", fontsize=7, color=GREY)


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
