"""What the demo shows while it runs: the camera, the state of the node, and where the time goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from phyai_ros.cli.recording import Recorder

PICTURE_COLUMNS = 32
BAR_COLUMNS = 28
STATE_STYLES = {"running": "green", "disabled": "cyan", "waiting": "yellow", "holding": "yellow", "stopped": "red"}
STAGES = (
    ("observe", "camera"),
    ("transfer", "transport"),
    ("queue", "queue"),
    ("inference", "inference"),
    ("actuate", "actuate"),
)


@dataclass(frozen=True)
class Scene:
    """What does not change during a run."""

    title: str
    episodes: int


def render(scene: Scene, recorder: Recorder) -> RenderableType:
    """The whole view from what `recorder` has seen so far."""
    parts: list[RenderableType] = [_state(scene, recorder), Text()]
    if recorder.timing is not None:
        parts += [_stages(recorder.timing), Text(), _control_time(recorder)]
    picture = recorder.image
    body: RenderableType = Group(*parts)
    if picture is not None and picture.encoding == "rgb8":
        pixels = np.frombuffer(picture.data, np.uint8).reshape(picture.height, picture.step)[:, : 3 * picture.width]
        body = Columns([draw_picture(pixels.reshape(picture.height, picture.width, 3)), body], padding=(0, 3))
    return Panel(body, title=scene.title, title_align="left", border_style="dim")


def draw_picture(image: NDArray[np.uint8], columns: int = PICTURE_COLUMNS) -> Text:
    """An RGB image [h, w, 3] in characters, two pixels above each other in each."""
    step = max(1, math.ceil(image.shape[1] / columns))
    small = image[::step, ::step]
    text = Text()
    for upper, lower in zip(small[0::2], small[1::2], strict=False):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", f"rgb({above[0]},{above[1]},{above[2]}) on rgb({below[0]},{below[1]},{below[2]})")
        text.append("\n")
    text.rstrip()
    return text


def _state(scene: Scene, recorder: Recorder) -> RenderableType:
    status = recorder.status
    outcomes = Text(" ").join(Text("●", "green" if e.outcome == "success" else "red") for e in recorder.episodes)
    done = len(recorder.episodes)
    table = _grid()
    if status is None:
        table.add_row("policy", Text("starting", "yellow"))
    else:
        table.add_row("policy", Text(status.state, STATE_STYLES.get(status.state, "")))
        table.add_row("", Text(status.text if status.text != status.state else "", "dim"))
    table.add_row("episode", Text(f"{min(done + 1, scene.episodes)} of {scene.episodes}   ") + outcomes)
    return table


def _stages(timing: Any) -> RenderableType:
    """A bar per stage; all five together are as long as the way from camera to robot."""
    table = _grid()
    lengths_s = [getattr(timing, f"l_{name}") for name, _ in STAGES]
    longest_s = max([0.05, *(length for length in lengths_s if math.isfinite(length))])
    for (_, label), length_s in zip(STAGES, lengths_s, strict=True):
        bar = "█" * round(BAR_COLUMNS * length_s / longest_s) if math.isfinite(length_s) else ""
        table.add_row(label, Text(f"{_ms(length_s):>9}  ") + Text(bar, "blue"))
    table.add_row("together", Text(f"{_ms(timing.l_critical):>9}"))
    return table


def _control_time(recorder: Recorder) -> RenderableType:
    timing, status = recorder.timing, recorder.status
    table = _grid()
    table.add_row(
        "X, Y", f"{_number(timing.x)}, {_number(timing.y)}   {timing.bound}-bound, margin {_number(timing.margin)}"
    )
    table.add_row(
        "delay", f"{timing.delay_counted} ticks (forecast {timing.delay_predicted}), {timing.queue_left} rows left"
    )
    if status is not None:
        errors = (status.tick_error_p50, status.tick_error_p99, status.tick_error_max)
        table.add_row("tick error", " / ".join(_ms(error) for error in errors) + "  p50 / p99 / max")
        table.add_row("ticks", f"{status.starved_ticks} starved, {status.missed_ticks} missed")
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=10)
    table.add_column()
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if math.isfinite(seconds) else "unknown"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "unknown"
