"""Pictures of the benchmark of execution modes: a heat table, curves over delay, traces, and the sweep of settings.

Colours are the Okabe-Ito set; modes differ in their markers and labels too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from phyai_ros.plots import GREY, STYLE, new_figure, save
from phyai_ros.rtc_bench import Cell
from phyai_ros.sim.arm import CONTROL_DT_S, POLICY_JOINTS
from phyai_ros.sim.evaluate import EpisodeResult

LOOKS = {  # colour, marker
    "sync": ("#E69F00", "s"),
    "none": ("#D55E00", "X"),
    "ensemble": ("#999999", "P"),
    "blend": ("#666666", "p"),
    "hard": ("#B8860B", "v"),
    "ramp": ("#8C6BB1", "^"),
    "identity": ("#0072B2", "o"),
    "fd": ("#56B4E9", "<"),
    "fd_lagged": ("#41AE76", ">"),
    "vjp": ("#009E73", "D"),
    "trained": ("#CC79A7", "*"),
}
TEXTS = {
    "sync": "the arm waits for each inference",
    "none": "chunks are swapped as they come",
    "ensemble": "mean of all chunks",
    "blend": "cross-fade over two ticks",
    "hard": "frozen rows painted in",
    "ramp": "starts from the running chunk",
    "identity": "guided by the running chunk",
    "fd": "guided by a forward difference",
    "fd_lagged": "guided by a lagged difference",
    "vjp": "guided by the gradient",
    "trained": "trained to continue the running chunk",
}
POOR_TO_GOOD = LinearSegmentedColormap.from_list("poor_to_good", ["#E08A5B", "#F7F3EE", "#8FC3E8"])
TRACED = ("sync", "none", "identity", "vjp", "trained")
TRACE_DELAY = 8
TICK_S = CONTROL_DT_S


def draw_all(cells: Mapping[str, Sequence[Cell]], report: Mapping[str, Any], made: str, folder: Path) -> list[Path]:
    """Draw what there is; `cells` and `report` hold the groups cells, jitter and sweep. Returns the files."""
    figures = {
        "rtc_table": plot_table([*report["cells"], *report.get("jitter", [])]),
        "rtc_curves": plot_curves(report["cells"]),
        "rtc_traces": plot_traces(cells["cells"]),
        "rtc_sweep": plot_sweep(report.get("sweep", [])),
    }
    paths = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in paths.items():
        figure.text(0.995, 0.002, made, ha="right", va="bottom", fontsize=7, color=GREY)
        save(figure, path)
    return list(paths)


def plot_table(cells: Sequence[Mapping[str, Any]]) -> Figure:
    """Modes down, delays across; the colour is the success rate, the text success, mean seam and jerk."""
    modes = list(dict.fromkeys(cell["mode"] for cell in cells))
    delays = list(dict.fromkeys(_delay_text(cell) for cell in cells))
    rates = np.full((len(modes), len(delays)), np.nan)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(max(6.4, 2.2 + 1.15 * len(delays)), 1.5 + 0.55 * len(modes))
        panel = figure.subplots()
        for cell in cells:
            row, column = modes.index(cell["mode"]), delays.index(_delay_text(cell))
            rates[row, column] = cell["success"]
            _write_cell(panel, column, row, cell)
        image = panel.imshow(rates, cmap=POOR_TO_GOOD, vmin=0, vmax=1, aspect="auto")
        panel.set_xticks(range(len(delays)), delays)
        panel.set_yticks(range(len(modes)), modes)
        panel.set_xlabel("inference delay (ticks of 40 ms)")
        panel.spines[:].set_visible(False)
        panel.tick_params(length=0)
        panel.set_title("Success; below it mean seam (mrad) · jerk (rad/s³)")
        figure.colorbar(image, ax=panel, label="success", pad=0.01)
    return figure


def _write_cell(panel: Axes, column: int, row: int, cell: Mapping[str, Any]) -> None:
    panel.text(column, row - 0.14, f"{cell['success']:.2f}", ha="center", va="center", fontsize=10, weight="bold")
    below = f"{_number(cell['seam_mrad_mean'])} · {_number(cell['jerk'])}"
    panel.text(column, row + 0.22, below, ha="center", va="center", fontsize=8)


def plot_curves(cells: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Success with its 95 % interval, mean seam and jerk against delay, one line per mode. None for one delay."""
    if len({cell["delay"] for cell in cells}) < 2:
        return None
    with matplotlib.rc_context(STYLE):
        figure = new_figure(11.5, 4.2)
        panels = figure.subplots(1, 3, sharex=True)
        for mode in dict.fromkeys(cell["mode"] for cell in cells):
            _draw_mode(panels, mode, [cell for cell in cells if cell["mode"] == mode])
        titles = ("success, with 95 % interval", "mean seam (mrad)", "jerk of the commands (rad/s³)")
        for panel, title in zip(panels, titles, strict=True):
            panel.set_title(title)
            panel.grid(axis="y", color="#E5E5E5")
            panel.set_ylim(bottom=0)
            panel.set_xlabel("inference delay (ticks of 40 ms)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _draw_mode(panels: Sequence[Axes], mode: str, cells: Sequence[Mapping[str, Any]]) -> None:
    colour, marker = LOOKS[mode]
    delays = [cell["delay"] for cell in cells]
    for panel, name in zip(panels, ("success", "seam_mrad_mean", "jerk"), strict=True):
        values = [np.nan if cell[name] is None else cell[name] for cell in cells]
        panel.plot(delays, values, color=colour, marker=marker, markersize=5, linewidth=1.6, label=mode)
    low, high = np.array([cell["success_ci"] for cell in cells]).T
    panels[0].fill_between(delays, low, high, color=colour, alpha=0.12, linewidth=0)


def plot_traces(cells: Sequence[Cell], joint: int = 0) -> Figure | None:
    """`joint` as commanded over one episode in several modes, at the delay nearest to TRACE_DELAY.

    It is the episode in which mode none jumps most: what a seam looks like where there is one.
    """
    delays = {cell.plan.longest_delay for cell in cells}
    delay = min(delays, key=lambda ticks: (abs(ticks - TRACE_DELAY), ticks))
    chosen = {cell.plan.mode: cell for cell in cells if cell.plan.longest_delay == delay and cell.plan.mode in TRACED}
    if not chosen:
        return None
    episode = _roughest_episode(chosen.get("none") or next(iter(chosen.values())))
    with matplotlib.rc_context(STYLE):
        figure = new_figure(8.4, 1.4 + 1.3 * len(chosen))
        panels = figure.subplots(len(chosen), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for panel, mode in zip(panels, (mode for mode in TRACED if mode in chosen), strict=True):
            _draw_trace(panel, mode, chosen[mode].episodes[episode].result, joint)
        panels[-1].set_xlabel("time (s)")
        figure.supylabel(f"'{POLICY_JOINTS[joint]}' command (rad)", fontsize=10)
        which = "The episode in which mode none jumps most" if "none" in chosen else "One episode"
        took = f"inference takes {delay} ticks ({1e3 * delay * TICK_S:.0f} ms)"
        figure.suptitle(f"{which}; {took}; circle: a chunk takes over", x=0.01, ha="left", fontsize=11)
    return figure


def _roughest_episode(cell: Cell) -> int:
    return int(np.argmax([episode.result.seams_mrad.max(initial=0.0) for episode in cell.episodes]))


def _draw_trace(panel: Axes, mode: str, result: EpisodeResult, joint: int) -> None:
    colour, _ = LOOKS[mode]
    times, values = TICK_S * np.arange(result.ticks), result.rows[:, joint]
    panel.plot(times, values, color=colour, linewidth=1.8)
    swaps = np.array(result.swaps, int)
    panel.plot(times[swaps], values[swaps], "o", color="white", markeredgecolor=colour, markersize=4.5)
    panel.annotate(result.outcome.value, (times[-1], values[-1]), (6, 0), textcoords="offset points", color=colour)
    panel.set_title(f"{mode}: {TEXTS[mode]}", color=colour)
    panel.grid(axis="x", color="#E5E5E5")


def plot_sweep(cells: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Success, seam and jerk of mode identity over the mask, a line per execution horizon. None without cells."""
    if not cells:
        return None
    steps = sorted({cell["denoise_steps"] for cell in cells})
    with matplotlib.rc_context(STYLE):
        figure = new_figure(10.5, 1.0 + 2.7 * len(steps))
        grid = figure.subplots(len(steps), 3, sharex=True, sharey="col", squeeze=False)
        for panels, count in zip(grid, steps, strict=True):
            _draw_sweep(panels, [cell for cell in cells if cell["denoise_steps"] == count])
            panels[0].set_ylabel(f"{count} denoise steps")
        for panel, title in zip(grid[0], ("success", "mean seam (mrad)", "jerk (rad/s³)"), strict=True):
            panel.set_title(title)
        for panel in grid[-1]:
            panel.set_xlabel("mask past the frozen rows")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right center")
        figure.suptitle(f"Mode identity at a delay of {cells[0]['delay']} ticks; dotted: mode none", x=0.01, ha="left")
    return figure


def _draw_sweep(panels: Sequence[Axes], cells: Sequence[Mapping[str, Any]]) -> None:
    for colour, s in zip(("#56B4E9", "#0072B2", "#000000"), sorted({cell["s"] for cell in cells}), strict=False):
        own = [cell for cell in cells if cell["s"] == s]
        guided, naive = ([cell for cell in own if cell["mode"] == mode] for mode in ("identity", "none"))
        for panel, name in zip(panels, ("success", "seam_mrad_mean", "jerk"), strict=True):
            masks, values = [str(cell["mask_ext"]) for cell in guided], [cell[name] for cell in guided]
            panel.plot(masks, values, "o-", color=colour, label=f"s = {s}")
            for cell in naive:
                panel.axhline(cell[name], color=colour, linestyle=":", linewidth=1.2)
            panel.set_ylim(bottom=0)
            panel.grid(axis="y", color="#E5E5E5")


def _delay_text(cell: Mapping[str, Any]) -> str:
    delay = cell["delay"]
    return str(delay) if isinstance(delay, int) else f"{delay[0]} to {delay[1]}\n(random)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
