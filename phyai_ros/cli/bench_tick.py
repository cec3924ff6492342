"""`phyai-ros bench tick`: how punctual the control loop is on this machine while the policy infers."""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from phyai_ros.cli.tick_trial import TickFigures

LOWEST_HZ, HIGHEST_HZ = 1.0, 1000.0
LEGEND = "missed: ticks left out because a whole period was gone; p50, p99 and max are of the ticks that ran."


def bench_tick(
    rate: Annotated[str, typer.Option(help="Control rates in Hz, separated by commas")] = "25,50,500",
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600, help="Measured time per rate, after a second of warm-up")
    ] = 10.0,
    priority: Annotated[
        int, typer.Option(min=0, max=99, help="SCHED_FIFO priority of the control thread; 0: normal")
    ] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint of flow_tiny; by default the shipped weights")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
    max_p99_ms: Annotated[float | None, typer.Option(help="Exit with 1 when the p99 of any rate is larger")] = None,
) -> None:
    """Measure the tick error of the control loop while the policy infers in its thread."""
    rates_hz = parse_rates(rate)
    results = run_trials(rates_hz, seconds, priority, checkpoint, console := make_console())
    console.print(make_table(results))
    console.print(LEGEND, style="dim", highlight=False)
    if json_file is not None:
        write_json(json_file, report(results, seconds, priority))
        tell_written(console, json_file)
    worst = max(results, key=lambda result: result.p99_ms)
    if max_p99_ms is not None and worst.p99_ms > max_p99_ms:
        raise CommandFailed(
            f"p99 is {worst.p99_ms:.2f} ms at {worst.rate_hz:g} Hz, more than the {max_p99_ms:g} ms asked for"
        )


def parse_rates(text: str) -> list[float]:
    """ "25,50" -> [25.0, 50.0]. Raises ValueError with what is allowed."""
    try:
        rates_hz = [float(part) for part in text.split(",")]
    except ValueError:
        rates_hz = []
    if not rates_hz or not all(LOWEST_HZ <= rate <= HIGHEST_HZ for rate in rates_hz):
        allowed = f"numbers from {LOWEST_HZ:g} to {HIGHEST_HZ:g} separated by commas"
        raise ValueError(f"--rate is {text!r}; allowed are {allowed}, for example 25,50.")
    return rates_hz


def run_trials(
    rates_hz: list[float], seconds: float, priority: int, checkpoint: Path | None, console: Console
) -> list[TickFigures]:
    """One trial per rate, with the same warm policy; rows are published where rclpy is installed."""
    from phyai_ros.cli.tick_trial import load_engine, publisher, run_trial

    engine = load_engine(checkpoint)
    results = []
    with publisher(engine.spec.action_dim) as publish:
        for rate_hz in rates_hz:
            with console.status(f"{rate_hz:g} Hz for {seconds:g} s"):
                figures, warnings = run_trial(engine, rate_hz, seconds, priority, publish)
            results.append(figures)
            for warning in warnings:
                console.print(warning, style="yellow", markup=False)
    return results


def make_table(results: list[TickFigures]) -> Table:
    table = Table(title="Tick error while the policy infers", title_justify="left", show_edge=False)
    for heading in ("rate", "p50", "p99", "max", "missed", "inference p50", "chunks"):
        table.add_column(heading, justify="right")
    for result in results:
        cells = (f"{value:.3f} ms" for value in (result.p50_ms, result.p99_ms, result.max_ms))
        missed = f"{result.missed_ticks} of {result.ticks + result.missed_ticks}"
        table.add_row(f"{result.rate_hz:g} Hz", *cells, missed, _inference(result), str(result.chunks))
    return table


def _inference(result: TickFigures) -> str:
    return "none" if result.inference_p50_ms is None else f"{result.inference_p50_ms:.1f} ms"


def report(results: list[TickFigures], seconds: float, priority: int) -> dict[str, Any]:
    """One JSON object; `rates` holds an object per rate."""
    return {
        "rates": [asdict(result) for result in results],
        "seconds": seconds,
        "priority": priority,
        "publishing": find_spec("rclpy") is not None,
        "load_1min": round(os.getloadavg()[0], 2),
        **host_facts(),
    }
