"""`phyai-ros rtc-bench`: what every way of joining chunks does to the built-in task when inference takes time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts, host_line, usable_cores
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from phyai_ros.rtc_bench import Cell, CellPlan

SEEDS_APART = 10_000
GOOD, POOR = 0.95, 0.8


def rtc_bench(
    modes: Annotated[
        str, typer.Option(help="Ways of joining chunks, separated by commas; all: every one there is")
    ] = "sync,none,identity,fd,ramp,vjp,trained",
    delays: Annotated[str, typer.Option(help="Inference delays in ticks of 40 ms")] = "0,2,4,6,8,10",
    jitter: Annotated[bool, typer.Option("--jitter", help="Also a delay drawn for each chunk, 1 to 9 ticks")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also mode identity with other masks, execution horizons and denoise steps")
    ] = False,
    episodes: Annotated[int, typer.Option(min=1, max=10_000, help="Episodes per cell")] = 100,
    denoise_steps: Annotated[int, typer.Option(min=0, max=100, help="0: as the policy was trained")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="Of the episodes")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for pictures")] = None,
) -> None:
    """Run the built-in task under inference delay in every mode, in simulated time, and compare."""
    from phyai_ros.rtc_bench import MODES, jitter_plans, sweep_plans, table_plans

    names = list(MODES) if modes == "all" else split_names(modes)
    groups = {"cells": table_plans(names, split_ticks(delays), denoise_steps)}
    if jitter:
        groups["jitter"] = jitter_plans(names, denoise_steps)
    if sweep:
        groups["sweep"] = sweep_plans()
    console = make_console()
    started_s = time.monotonic()
    cells = run_groups(groups, episodes, seed, workers or usable_cores(), console)
    report = {**figures_of(cells), "episodes": episodes, "seed": seed, **host_facts()}
    report["wall_s"] = round(time.monotonic() - started_s, 1)
    show(report, console)
    if json_file is not None:
        write_json(json_file, report)
        tell_written(console, json_file)
    if plots is not None:
        from phyai_ros.rtc_plots import draw_all

        for path in draw_all(cells, report, f"{host_line(report)}, {episodes} episodes per cell", plots):
            tell_written(console, path)


def split_names(text: str) -> list[str]:
    """Mode names; unknown ones are refused by CellPlan."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def split_ticks(text: str) -> list[int]:
    """Raises ValueError naming the option."""
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ValueError(f"--delays is {text!r}; allowed are whole ticks, separated by commas: 0,4,8.") from error


def run_groups(
    groups: dict[str, list[CellPlan]], episodes: int, seed: int, workers: int, console: Console
) -> dict[str, list[Cell]]:
    """All plans under one progress bar, given back by group."""
    from phyai_ros.rtc_bench_pool import run_cells
    from phyai_ros.sim.evaluate import FIRST_TEST_SEED

    plans = [plan for group in groups.values() for plan in group]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("episodes", total=len(plans) * episodes)
        try:
            cells = iter(
                run_cells(
                    plans,
                    episodes,
                    FIRST_TEST_SEED + seed * SEEDS_APART,
                    workers,
                    lambda count: progress.advance(bar, count),
                )
            )
        except RuntimeError as error:
            raise CommandFailed(str(error)) from error
    return {name: [next(cells) for _ in group] for name, group in groups.items()}


def figures_of(cells: dict[str, list[Cell]]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each group, each cell with a remark on what its mode changes."""
    from phyai_ros.rtc_bench import judge

    groups = {name: [cell.figures() for cell in group] for name, group in cells.items()}
    for group in groups.values():
        for figures, remark in zip(group, judge(group), strict=True):
            figures["against_none"] = remark
    return groups


def show(report: dict[str, Any], console: Console) -> None:
    """Print every table of the report."""
    console.print(make_table(report["cells"] + report.get("jitter", [])))
    console.print("success, mean seam (mrad), jerk (rad/s³), and against mode none at this delay")
    if "sweep" in report:
        console.print(make_sweep_table(report["sweep"]))
    console.print(f"{report['episodes']} episodes per cell, {report['wall_s']:.0f} s", highlight=False)


def make_table(cells: Sequence[dict[str, Any]]) -> Table:
    """Modes down, delays across; a cell has four short lines, so that seven delays fit on 80 columns."""
    delays = list(dict.fromkeys(delay_text(cell) for cell in cells))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_lines=True)
    table.add_column("delay, ticks", min_width=9)
    for delay in delays:
        table.add_column(delay, justify="right", no_wrap=True)
    for mode in dict.fromkeys(cell["mode"] for cell in cells):
        row = {delay_text(cell): cell for cell in cells if cell["mode"] == mode}
        table.add_row(mode, *(cell_text(row[delay]) if delay in row else "" for delay in delays))
    return table


def make_sweep_table(cells: Sequence[dict[str, Any]]) -> Table:
    """One row per setting; a gap where the denoise steps or the execution horizon change."""
    title = f"a delay of {cells[0]['delay']} ticks under other settings"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("mode", "steps", "s", "mask", "success", "95 %", "seam", "p99", "jerk", "against"):
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for cell in cells:
        low, high = cell["success_ci"]
        mask = "" if cell["mode"] == "none" else str(cell["mask_ext"])
        figures = [number(cell[name]) for name in ("seam_mrad_mean", "seam_mrad_p99", "jerk")]
        settings = (cell["mode"], str(cell["denoise_steps"]), str(cell["s"]), mask)
        table.add_row(*settings, success_text(cell), f"{low:.2f}-{high:.2f}", *figures, against(cell))
    return table


def cell_text(cell: dict[str, Any]) -> str:
    figures = [success_text(cell), number(cell["seam_mrad_mean"]), number(cell["jerk"])]
    return "\n".join([*figures, f"[dim]{against(cell)}[/dim]"])


def against(cell: dict[str, Any]) -> str:
    """The remark on a cell in one or two short words."""
    words = {"succeeds more": "better", "succeeds less": "worse", "partly smoother": "partly"}
    return words.get(cell["against_none"], cell["against_none"])


def success_text(cell: dict[str, Any]) -> str:
    colour = "green" if cell["success"] >= GOOD else "yellow" if cell["success"] >= POOR else "red"
    return f"[{colour}]{cell['success']:.2f}[/{colour}]"


def delay_text(cell: dict[str, Any]) -> str:
    delay = cell["delay"]
    return str(delay) if isinstance(delay, int) else f"{delay[0]} to {delay[1]}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
