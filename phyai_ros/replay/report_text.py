"""A report on the terminal: verdict, findings, figures, data."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phyai_ros.replay.report import Report
from phyai_ros.replay.report_html import join_ms
from phyai_ros.replay.report_page import ROWS, look_up

STYLES = {"pass": "bold green", "look": "bold yellow", "fail": "bold red"}
LEVEL_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}
MOST_FINDINGS = 25


def print_report(report: Report, console: Console) -> None:
    _print_data(report, console)
    if report.figures is not None:
        _print_figures(report, console)
    _print_findings(report, console)
    console.print(f"[{STYLES[report.verdict.grade]}]{report.verdict.headline}[/]")
    for sentence in report.verdict.sentences:
        console.print(f"  {escape(sentence)}", highlight=False)
    _print_measured(report, console)


def _print_data(report: Report, console: Console) -> None:
    table = Table(
        title=report.title if report.figures is None else "Data of the bag", title_justify="left", show_edge=False
    )
    table.add_column("topic", overflow="fold")
    for head in ("messages", "Hz", "period (ms)\np50 / p99 / max", "delay (ms)\np50 / p99"):
        table.add_column(head, justify="right", no_wrap=True)
    for topic in report.quality.topics:
        times = topic.times
        table.add_row(
            escape(topic.topic.name),
            str(times.count),
            _number(times.rate_hz),
            join_ms(times.period_p50_s, times.period_p99_s, times.period_max_s),
            join_ms(times.delay_p50_s, times.delay_p99_s),
        )
    console.print(table)


def _print_figures(report: Report, console: Console) -> None:
    columns = [report.figures] if report.baseline is None else [report.baseline, report.figures]
    table = Table(title=report.title, title_justify="left", show_edge=False)
    table.add_column("")
    for column in columns:
        table.add_column(escape(column["scenario"]), justify="right")
    for label, name in ROWS:
        values = [_number(look_up(column, name)) for column in columns]
        if any(values):
            table.add_row(label, *values)
    console.print(table)


def _print_findings(report: Report, console: Console) -> None:
    for finding in report.findings[:MOST_FINDINGS]:
        style = LEVEL_STYLES[finding.level]
        line = (
            f"{finding.time_s:9.3f} s  [{style}]{finding.level:7}[/]  {escape(finding.topic)}: {escape(finding.text)}"
        )
        console.print(line, highlight=False, soft_wrap=True)
    if len(report.findings) > MOST_FINDINGS:
        console.print(f"and {len(report.findings) - MOST_FINDINGS} more findings in the report", highlight=False)


def _print_measured(report: Report, console: Console) -> None:
    """The one line that depends on the machine; it is not part of the report."""
    if report.result is None or not report.result.inferences:
        return
    seconds = sorted(inference.measured_s for inference in report.result.inferences)
    slow = seconds[min(len(seconds) - 1, math.ceil(0.99 * len(seconds)) - 1)]
    window_s = report.figures["timing"]["l_env"]
    text = f"inference here: p50 {1e3 * seconds[len(seconds) // 2]:.1f} ms, p99 {1e3 * slow:.1f} ms"
    keeps = (
        "" if math.isnan(window_s) else f", for a window of {1e3 * window_s:.0f} ms (X at p99 {window_s / slow:.2f})"
    )
    console.print(f"  {text}{keeps}", highlight=False)


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"
