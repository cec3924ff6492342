"""What `phyai-ros top` shows, from a snapshot as the dashboard gets it."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BAR, ROOF_COLUMNS = 24, 48
SILENT_S = 2.0
LATE_S = 0.2
SHORTEST_S = 1e-5
STATE_STYLES = {"running": "bold green", "disabled": "bold cyan", "stopped": "bold red", "inactive": "bold"}
GROUP_STYLES = {"input": "blue", "inference": "yellow", "actuation": "green"}
COUNTERS = ("chunks", "starved_ticks", "missed_ticks", "hold_ticks", "stops", "chunks_rejected", "policy_errors")
NEWEST_EVENTS = 5


def render(state: dict[str, Any]) -> RenderableType:
    """The whole view."""
    if state["status"] is None:
        return Panel(f"waiting for {state['node']}: is it active, in this ROS domain?", title="phyai-ros top")
    parts: list[RenderableType] = [_head(state), Text()]
    if state["stages"]:
        parts += [Columns([_stages(state), _control_time(state)], padding=(0, 4)), Text()]
    parts += [
        Text(" ".join(state["words"]), "dim"),
        Text(),
        Columns([_inputs(state), _counters(state)], padding=(0, 4)),
    ]
    return Panel(Group(*parts, Text(), _events(state)), title=_title(state), title_align="left", border_style="dim")


def _title(state: dict[str, Any]) -> str:
    policy = state["policy"]
    if policy is None:
        return f"phyai-ros top {state['node']}"
    return f"{state['node']}: {policy['policy']} on {policy['device']}, mode {policy['rtc_mode']}"


def _head(state: dict[str, Any]) -> Text:
    status = state["status"]
    if state["silent_s"] is None or state["silent_s"] > SILENT_S:
        return Text(f"nothing heard for {state['silent_s'] or 0:.0f} s; the figures below are old", "bold red")
    text = Text(status["state"], STATE_STYLES.get(status["state"], "bold yellow"))
    if status["text"] != status["state"]:
        text.append(f"  {status['text']} ({status['reason']})", "")
    return text.append(f"   epoch {status['epoch']}, tick {status['tick']}", "dim")


def _stages(state: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1), title="from exposure to effect", title_justify="left", title_style="bold")
    for name in ("", "", "p50", "p99"):
        table.add_column(name, justify="right" if name else "left", header_style="dim", no_wrap=True)
    longest = max([1e-3, *(stage["p50"] or 0.0 for stage in state["stages"])])
    for stage in state["stages"]:
        bar = Text("unknown", "dim italic")
        if stage["p50"] is not None:
            bar = Text("█" * round(BAR * stage["p50"] / longest) or "▏", GROUP_STYLES[stage["group"]])
        if stage["how"] == "bounded":
            bar = Text(bar.plain.replace("█", "▒"), bar.style)
        table.add_row(Text(stage["label"], "dim"), bar, show_s(stage["p50"]), show_s(stage["p99"]))
    last = state["last"]
    table.add_row("together", Text(last["l_critical_how"], "dim"), show_s(last["l_critical"]), "")
    return table


def _control_time(state: dict[str, Any]) -> Group:
    status = state["status"]
    table = _grid("control time")
    table.add_row("bound by", f"{status['bound']}")
    for name, label in (("x", "X window/inference"), ("y", "Y window/cycle"), ("margin", "margin X - 1")):
        table.add_row(label, f"{_number(status[f'{name}_p50'])}  (p99 {_number(status[f'{name}_p99'])})")
    table.add_row("cycle", f"{show_s(status['l_control_p50'])}, window {show_s(status['l_env'])}")
    delays = state["last"]
    table.add_row("delay", f"{delays['delay_counted']} ticks, forecast {delays['delay_predicted']}")
    table.add_row("seam", f"{_number(delays['seam'])}, {delays['queue_left']} rows were left")
    errors = (status["tick_error_p50"], status["tick_error_p99"], status["tick_error_max"])
    table.add_row("tick error", " / ".join(show_s(error) for error in errors))
    return Group(table, Text(), roof_line(status["x_p50"], status["x_p99"]))


def roof_line(x_p50: float | None, x_p99: float | None) -> Text:
    """X from 0.1 to 10 on one line, the ridge in the middle: `●` the median, `○` the 99th percentile."""
    line = list("─" * ROOF_COLUMNS)
    line[ROOF_COLUMNS // 2] = "┼"
    for x, mark in ((x_p99, "○"), (x_p50, "●")):
        if x is not None:
            place = (math.log10(min(max(x, 0.1), 10.0)) + 1.0) / 2.0
            line[round(place * (ROOF_COLUMNS - 1))] = mark
    ends = "inference-bound".ljust(ROOF_COLUMNS // 2) + "environment-bound".rjust(ROOF_COLUMNS - ROOF_COLUMNS // 2)
    return Text("".join(line) + "\n") + Text(ends, "dim")


def _inputs(state: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1), title="inputs", title_justify="left", title_style="bold")
    for name in ("", "age", "arrival - stamp"):
        table.add_column(name, justify="right" if name else "left", header_style="dim", no_wrap=True)
    for one in state["status"]["inputs"]:
        late = one["age_s"] is None or one["age_s"] > LATE_S
        age = Text("nothing yet" if one["age_s"] is None else show_s(one["age_s"]), "red" if late else "")
        table.add_row(Text(one["name"], "dim"), age, show_s(one["offset_s"]))
    return table


def _counters(state: dict[str, Any]) -> Table:
    table = _grid("counters")
    for name in COUNTERS:
        table.add_row(name.replace("_", " "), str(state["status"][name]))
    return table


def _events(state: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for event in state["events"][:NEWEST_EVENTS]:
        clock = datetime.fromtimestamp(event["stamp_s"]).strftime("%H:%M:%S")
        text = "" if event["text"] == event["state"] else event["text"]
        table.add_row(Text(clock, "dim"), event["state"], Text(text, "dim"))
    return table


def _grid(title: str) -> Table:
    table = Table(box=None, padding=(0, 1), title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    return table


def show_s(seconds: float | None) -> str:
    """A latency with the digits that matter; empty where unknown."""
    if seconds is None:
        return ""
    if 0.0 < seconds < SHORTEST_S:
        return "< 0.01 ms"
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) < 0.01 else f"{seconds * 1e3:.0f} ms"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
