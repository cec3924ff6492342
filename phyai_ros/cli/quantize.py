"""`phyai-ros quantize`: a checkpoint whose prefix is rounded to FP8, if its actions stay near those of the original."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from phyai_adapters.quantization import Written

MAX_ERROR = 0.05


def quantize(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder")],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist")],
    scheme: Annotated[str, typer.Option(help="fp8-prefix: large products of images and prompt in FP8")] = "fp8-prefix",
    adapter: Annotated[str, typer.Option(help="Policy adapter; by default told from the files")] = "",
    device: Annotated[str, typer.Option(help="Where to compare: cpu, cuda or cuda:N")] = "cpu",
    io: Annotated[Path | None, typer.Option(help="Folder with recorded inputs; without: random ones")] = None,
    max_error: Annotated[
        float, typer.Option(min=0.0, help="Largest relative L2 error of the actions of any input")
    ] = MAX_ERROR,
    force: Annotated[bool, typer.Option("--force", help="Write it even if the error is larger")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
) -> None:
    """Round a checkpoint offline; exit code 1, nothing written, when its actions differ by more than --max-error."""
    from phyai_adapters import load_adapter
    from phyai_adapters import quantization as work
    from phyai_adapters.detection import detect_adapter
    from phyai_core.engine import resolve_device

    name, where, console = adapter or detect_adapter(checkpoint), resolve_device(device), make_console()
    work.check_quantizable(name, scheme)
    with work.new_folder(out, checkpoint) as folder:
        expected = work.sample_chunks(load_adapter(name, checkpoint, where), where, io)
        written = work.write_quantized(checkpoint, name, folder, where)
        errors = work.relative_errors(work.sample_chunks(load_adapter(name, folder, where), where, io), expected)
        facts = {"relative_l2": errors, "inputs": "recorded" if io else "random", "max_error": max_error}
        report = {"source": str(checkpoint), **facts, "forced": force, "device": device, **host_facts()}
        console.print(make_table(written, errors, facts["inputs"]))
        _judge(float(np.max(errors)), max_error, force)
        work.write_record(folder, written, **report)
    tell_written(console, out)
    if json_file is not None:
        write_json(json_file, {**vars(written), **report})
        tell_written(console, json_file)


def _judge(error: float, max_error: float, force: bool) -> None:
    if not np.isfinite(error):
        raise CommandFailed("actions of the original or of the rounded checkpoint are not finite; nothing was written")
    if error > max_error and not force:
        raise CommandFailed(
            f"actions differ by {error:.2e} (relative L2), allowed is {max_error:g}; nothing was written. Keep the "
            "original, or after a trial of the policy allow more with --max-error or --force"
        )


def make_table(written: Written, errors: list[float], inputs: str) -> Table:
    """Sizes, and one line per compared chunk."""
    sizes = f"{written.bytes_before / 1e6:.1f} -> {written.bytes_after / 1e6:.1f} MB"
    title = f"{written.scheme}: {written.tensors} tensors rounded, {sizes}"
    table = Table("chunk", title=title, title_justify="left", show_edge=False)
    table.add_column("relative L2 of the actions", justify="right")
    for index, error in enumerate(errors):
        table.add_row(f"{inputs} input {index}", f"{error:.2e}")
    return table
