"""`phyai-ros report`: what recorded timings say about control time, as a page, pictures and words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts, host_line


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Bag, timings.jsonl, or run_*.npz of the demo; several are compared")
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.json and the pictures")] = Path(
        "out/report"
    ),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here too")] = None,
    require_on_curve: Annotated[
        bool, typer.Option(help="Exit with 1 when a run is off its curve of the roofline by more than 5 % and a tick")
    ] = False,
) -> None:
    """Say what bounds the robot, which stage dominates, and what a faster model would buy."""
    from phyai_ros.cli.summary import write_json
    from phyai_ros.report.control_time import describe_run, explain_run, write_report
    from phyai_ros.report.runs import read_run

    console, read = make_console(), [read_run(path) for path in runs]
    paths = write_report(read, out, f"Written on {host_line(host_facts())}. Sources: {', '.join(map(str, runs))}.")
    for run in read:
        console.print(f"{run.label}: {' '.join(explain_run(run))}", markup=False, highlight=False)
    for path in paths:
        tell_written(console, path)
    figures = [describe_run(run) for run in read]
    if json_file is not None:
        write_json(json_file, {"runs": figures})
        tell_written(console, json_file)
    off = [figure["run"] for figure in figures if not figure["on_curve"]]
    if require_on_curve and off:
        raise CommandFailed(f"off the curve: {', '.join(off)}; {out / 'report.html'} shows by how much")
