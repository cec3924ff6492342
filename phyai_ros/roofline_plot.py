"""The control-time roofline: where runs stand between waiting for the policy and waiting for the world.

X = L_env / L_inference, Y = L_env / L_control; Y = min(1, X) when inference is hidden behind execution as far as it can
be, Y = X / (1 + X) when the robot waits for each inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phyai_ros.plots import GREY, MODE_COLOURS, STYLE, Run, in_order, new_figure, sign

INFERENCE_SHADE, ENVIRONMENT_SHADE = "#F3D9CC", "#D3E5F1"
MODE_MARKERS = {"sync": "^", "none": "s", "rtc": "o"}


def plot_roofline(runs: Sequence[Run]) -> Figure:
    """X = L_env / L_inference against Y = L_env / L_control, with the roof, the curve without overlap and the runs."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(9.6, 4.6)
        axes = figure.subplots()
        left, right = _roofline_range(runs)
        draw_roof(axes, left, right)
        for run in in_order(runs):
            _draw_point(axes, run)
        axes.set(xscale="log", xlim=(left, right), ylim=(0, 1.15))
        axes.set_xlabel("X = executed window / inference time   (L_env / L_inference)")
        axes.set_ylabel("Y = executed window / control time   (L_env / L_control)")
        axes.set_title("Control-time roofline: is the robot waiting for the policy?")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        figure.legend(loc="outside right upper", fontsize=9)
        sign(figure, runs)
    return figure


def _roofline_range(runs: Sequence[Run]) -> tuple[float, float]:
    known = [run.summary["x"] for run in runs if run.summary["x"]]
    known += [x for run in runs if (x := x_at_p99(run.summary))]
    return min([0.1, *(0.5 * x for x in known)]), max([10.0, *(2.0 * x for x in known)])


def draw_roof(axes: Axes, left: float, right: float) -> None:
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
