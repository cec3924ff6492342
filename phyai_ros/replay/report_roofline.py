"""Where a replay stands on the control-time roofline, with and without the what-if changes."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from phyai_ros.replay.report_figures import GREY, REPLAY, STYLE

LEFT, RIGHT = 0.1, 100.0


def draw_roofline(figures: dict[str, Any], baseline: dict[str, Any] | None) -> Figure | None:
    """X = L_env / L_inference against Y = L_env / L_control. None where no X is known."""
    runs = [(values, colour) for values, colour in ((baseline, GREY), (figures, REPLAY)) if values is not None]
    runs = [(values, colour) for values, colour in runs if not math.isnan(values["timing"]["x"])]
    if not runs:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        axes = figure.subplots()
        x = np.geomspace(LEFT, RIGHT, 300)
        axes.axvspan(LEFT, 1, color="#F3D9CC", alpha=0.6, linewidth=0)
        axes.axvspan(1, RIGHT, color="#D3E5F1", alpha=0.6, linewidth=0)
        axes.plot(x, np.minimum(1, x), color="black", label="roof: Y = min(1, X)")
        axes.plot(x, x / (1 + x), color=GREY, linestyle="--", label="waiting: Y = X / (1 + X)")
        for values, colour in runs:
            _draw_point(axes, values, colour)
        axes.set(xscale="log", xlim=(LEFT, RIGHT), ylim=(0, 1.15))
        axes.set_xlabel("X = executed window / inference time")
        axes.set_ylabel("Y = executed window / control time")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(loc="lower right", fontsize=8)
    return figure


def _draw_point(axes: Any, values: dict[str, Any], colour: str) -> None:
    timing = values["timing"]
    x, slow, y = (min(max(timing[name], LEFT), RIGHT) for name in ("x", "x_p99", "y"))
    if math.isnan(y):
        return
    axes.plot([slow, x], [y, y], color=colour, marker="|", markersize=10)
    label = f"{values['scenario']}: X {timing['x']:.3g}, Y {timing['y']:.3g}"
    axes.plot(x, y, "o", color=colour, markeredgecolor="white", markersize=8, label=label)
