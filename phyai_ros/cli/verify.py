"""`phyai-ros verify`: does a checkpoint compute here what it computed where it was recorded?"""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phyai_core.verification import StageCheck


def verify(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder")],
    io: Annotated[Path, typer.Option(help="Folder with inputs, intermediates and outputs (.safetensors)")],
    adapter: Annotated[str, typer.Option(help="Policy adapter; by default told from the files")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest absolute difference; by default 1e-5, relative 3e-2 in bfloat16, 0.2 in FP8"),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
) -> None:
    """Run a checkpoint on recorded inputs; name the first stage that departs. Exit code 1 when one does."""
    from phyai_core.verification import first_departure

    checks, allowed = run_checks(checkpoint, io, adapter, device, tolerance)
    console = make_console()
    console.print(f"allowed: {allowed}", highlight=False, soft_wrap=True)
    console.print(make_table(checks))
    wrong = first_departure(checks)
    if json_file is not None:
        facts = {**host_facts(), "checkpoint": str(checkpoint), "io": str(io), "device": device, "tolerance": allowed}
        write_json(json_file, {**facts, **make_report(checks)})
        tell_written(console, json_file)
    if wrong is not None:
        detail = wrong.text or f"max abs {wrong.max_abs:.2e}, relative L2 {wrong.relative:.2e}, allowed is {allowed}"
        raise CommandFailed(f"{wrong.name} is the first stage that departs: {detail}")


def run_checks(
    checkpoint: Path, io: Path, adapter: str, device: str, tolerance: float | None
) -> tuple[list[StageCheck], str]:
    """The checks and the tolerance in words. Raises ValueError for files that are missing or do not fit."""
    from phyai_adapters import load_adapter
    from phyai_adapters.detection import detect_adapter
    from phyai_adapters.fixtures import trace_recording
    from phyai_core.engine import resolve_device
    from phyai_core.verification import Tolerance, check_stages, default_tolerance, read_recording

    where, recording = resolve_device(device), read_recording(io)
    policy = load_adapter(adapter or detect_adapter(checkpoint), checkpoint, where)
    allowed = default_tolerance(policy, where) if tolerance is None else Tolerance(absolute=tolerance)
    stages = trace_recording(policy, recording.inputs, where)
    return check_stages(stages, recording.stages, allowed), str(allowed)


def make_report(checks: Sequence[StageCheck]) -> dict:
    """For the JSON file; what is not finite becomes null."""
    wrong = next((check.name for check in checks if not check.ok), None)
    stages = [
        {
            key: value if not isinstance(value, float) or isfinite(value) else None
            for key, value in asdict(check).items()
        }
        for check in checks
    ]
    return {"ok": wrong is None, "departs_at": wrong, "stages": stages}


def make_table(checks: Sequence[StageCheck]) -> Table:
    """One line per stage, in the order they are computed."""
    table = Table(show_edge=False)
    for column in ("stage", "max abs", "relative L2", ""):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    for check in checks:
        fine = "within" if check.max_abs else "equal"
        verdict = f"[green]{fine}[/]" if check.ok else f"[red]departs[/] {check.text}"
        table.add_row(check.name, f"{check.max_abs:.2e}", f"{check.relative:.2e}", verdict)
    return table
