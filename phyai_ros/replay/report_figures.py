"""Pictures of a report: what was commanded against what was recorded, chunks under their pictures, time, data."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phyai_core.types import Action
from phyai_ros.replay.action_log import ActionLog, ChunkLine
from phyai_ros.replay.clockwork import NS_PER_S
from phyai_ros.replay.frames import FrameStrip
from phyai_ros.replay.open_loop import OpenLoop
from phyai_ros.replay.quality import QualityReport
from phyai_ros.replay.reference import Track

REPLAY, RECORDED, GREY = "#0072B2", "#E69F00", "#555555"
STATE_COLOURS = {Action.RUN: "#0072B2", Action.HOLD: "#E69F00", Action.STOP: "#D55E00", Action.NONE: "#DDDDDD"}
STATE_WORDS = {Action.RUN: "moves", Action.HOLD: "holds", Action.STOP: "stands", Action.NONE: "waits"}
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def draw_commands(log: ActionLog, track: Track | None) -> Figure:
    """A panel per joint, and what the robot did in a band below. Gaps stay gaps."""
    with matplotlib.rc_context(STYLE):
        joints = len(log.names)
        figure = Figure(figsize=(10, 0.9 + 1.15 * joints), layout="constrained")
        ratios = [1.0] * joints + [0.22]
        panels = figure.subplots(joints + 1, 1, sharex=True, gridspec_kw={"height_ratios": ratios})
        for index, panel in enumerate(panels[:-1]):
            _draw_joint(panel, log, track, index)
        _draw_states(panels[-1], log)
        panels[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8)  # above, where nothing is drawn
        panels[-1].set_xlabel("bag time (s)")
    return figure


def _draw_joint(panel: Axes, log: ActionLog, track: Track | None, index: int) -> None:
    stamps, rows = log.rows()
    if track is not None and len(track.times_ns):
        shifted_ns = track.times_ns - round(track.topic.shift_s * NS_PER_S)
        times, values = _with_gaps(shifted_ns, track.positions[:, index], log)
        panel.plot(times, values, color=RECORDED, linewidth=2.2, alpha=0.8, label=f"recorded ({track.topic.name})")
    times, values = _with_gaps(stamps, rows[:, index], log)
    panel.plot(times, values, color=REPLAY, linewidth=1.1, label="replay")
    unit = log.units[index]
    panel.set_ylabel(f"{log.names[index]}\n({unit})" if unit else log.names[index], fontsize=8)
    panel.grid(axis="x", color="#E5E5E5")


def _with_gaps(stamps_ns: np.ndarray, values: np.ndarray, log: ActionLog) -> tuple[np.ndarray, np.ndarray]:
    times_s = (stamps_ns - log.start_ns) / NS_PER_S
    if len(times_s) < 2:
        return times_s, values
    steps = np.diff(times_s)
    breaks = np.flatnonzero(steps > max(1.5 * log.dt_s, 5.0 * float(np.median(steps)))) + 1
    return np.insert(times_s, breaks, np.nan), np.insert(np.asarray(values, float), breaks, np.nan)


def _draw_states(panel: Axes, log: ActionLog) -> None:
    for line, count in log.stretches():
        start_s = log.since_start_s(line.stamp_ns)
        panel.axvspan(start_s, start_s + count * log.dt_s, color=STATE_COLOURS[line.action], linewidth=0)
    seen = [action for action in STATE_COLOURS if any(line.action is action for line, _ in log.stretches())]
    patches = [matplotlib.patches.Patch(color=STATE_COLOURS[action], label=STATE_WORDS[action]) for action in seen]
    panel.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.9), ncols=4, fontsize=8)
    panel.set_yticks([])


def draw_strip(log: ActionLog, strip: FrameStrip) -> Figure | None:
    """Pictures over the bag, and under each the chunk that was planned from about there. None without pictures."""
    shown = {key: pictures for key, pictures in strip.pictures.items() if pictures}
    if not shown:
        return None
    columns = max(len(pictures) for pictures in shown.values())
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.45 * len(shown) + 1.5), layout="constrained")
        panels = figure.subplots(len(shown) + 1, columns, squeeze=False)
        for row, (key, pictures) in enumerate(shown.items()):
            for column in range(columns):
                _draw_picture(panels[row, column], log, pictures[column] if column < len(pictures) else None)
            panels[row, 0].set_ylabel(key, fontsize=8)
        first = next(iter(shown.values()))
        for column in range(columns):
            _draw_preview(panels[-1, column], log, first[column][0] if column < len(first) else None)
        panels[-1, 0].set_ylabel("chunk, from its start", fontsize=7)
        handles = max((panel.get_legend_handles_labels() for panel in panels[-1]), key=lambda pair: len(pair[0]))
        figure.legend(*handles, loc="outside lower center", ncols=7, fontsize=7)
    return figure


def _draw_picture(panel: Axes, log: ActionLog, picture: tuple[int, np.ndarray] | None) -> None:
    panel.set_xticks([])
    panel.set_yticks([])
    for side in panel.spines.values():
        side.set_visible(False)
    if picture is not None:
        panel.imshow(picture[1])
        panel.set_title(f"{log.since_start_s(picture[0]):.1f} s", fontsize=8)


def _draw_preview(panel: Axes, log: ActionLog, log_ns: int | None) -> None:
    panel.tick_params(labelsize=6)
    chunk = None if log_ns is None else _chunk_near(log, log_ns)
    if chunk is None:
        panel.text(0.5, 0.5, "no chunk", ha="center", va="center", transform=panel.transAxes, fontsize=7, color=GREY)
        panel.set_xticks([])
        panel.set_yticks([])
        return
    actions = chunk.chunk.actions - chunk.chunk.actions[:1]
    for index, name in enumerate(log.names):
        panel.plot(log.dt_s * np.arange(len(actions)), actions[:, index], color=PALETTE[index % 7], lw=0.9, label=name)


def _chunk_near(log: ActionLog, log_ns: int) -> ChunkLine | None:
    """The chunk launched nearest to an instant, within half the time that a chunk spans."""
    reach_ns = 0.5 * log.dt_s * NS_PER_S * (len(log.chunks[0].chunk.actions) if log.chunks else 0)
    near = min(log.chunks, key=lambda line: abs(line.launch_ns - log_ns), default=None)
    return near if near is not None and abs(near.launch_ns - log_ns) <= reach_ns else None


def draw_open_loop(loop: OpenLoop, dt_s: float) -> Figure | None:
    """Error of a chunk's rows against the error of holding still. None where nothing could be compared."""
    if not loop.chunks:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 2.4), layout="constrained")
        axes = figure.subplots()
        ahead_s = dt_s * np.arange(1, len(loop.by_row) + 1)
        axes.plot(ahead_s, loop.hold_last_by_row, color=GREY, linestyle="--", label="holding still")
        axes.plot(ahead_s, loop.by_row, color=REPLAY, marker="o", markersize=3, label="chunks of the policy")
        axes.set(xlabel="seconds after the launch", ylabel="mean absolute error", ylim=(0, None))
        axes.legend(fontsize=8)
    return figure


def draw_data(report: QualityReport, duration_s: float) -> Figure:
    """Messages per topic over the bag: pale where few, white where none."""
    topics = [topic for topic in report.topics if topic.topic.count]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 0.8 + 0.28 * len(topics)), layout="constrained")
        axes = figure.subplots()
        for row, topic in enumerate(topics):
            counts = np.array([topic.timeline], float)
            extent = (0.0, duration_s, row - 0.42, row + 0.42)
            axes.imshow(counts / max(1.0, counts.max()), cmap="Blues", vmin=0, vmax=1, extent=extent, aspect="auto")
        _mark(axes, report, [topic.topic.name for topic in topics])
        axes.set(ylim=(len(topics) - 0.5, -0.5), xlim=(0, max(duration_s, 1e-3)), xlabel="bag time (s)")
        axes.set_yticks(range(len(topics)), [topic.topic.name for topic in topics], fontsize=7)
    return figure


def _mark(axes: Axes, report: QualityReport, names: Sequence[str]) -> None:
    """A mark at every finding that has its place on the timeline."""
    for finding in report.findings:
        if finding.topic in names and finding.kind in ("gap", "frozen", "stamp_back", "format", "spread"):
            axes.plot(finding.time_s, names.index(finding.topic), marker="v", color="#D55E00", markersize=5)
