"""`phyai-ros params`: the parameters of the policy node, as a table, a YAML template or a reference page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.parameter_docs import EXAMPLE_CAMERA, reference_markdown, yaml_template
from phyai_ros.parameter_table import Parameter, parameter_table


def params(
    words: Annotated[str, typer.Argument(help="Show only parameters that contain this, in name or description")] = "",
    yaml: Annotated[
        Path | None, typer.Option(help="Write a parameter file with every parameter at its default")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the reference page")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the table as JSON")] = None,
) -> None:
    """Show the parameters of the policy node, or write a YAML template to start from."""
    rows = [
        row for row in parameter_table([EXAMPLE_CAMERA]) if words.lower() in f"{row.name} {row.description}".lower()
    ]
    if not rows:
        raise ValueError(f"no parameter contains {words!r}; phyai-ros params shows them all.")
    outputs = ((yaml, yaml_template), (markdown, reference_markdown), (json, lambda: _as_json(rows)))
    wanted = [(path, make) for path, make in outputs if path is not None]
    for path, make in wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())
        tell_written(Console(stderr=True), path)
    if not wanted:
        make_console().print(_as_table(rows))


def _as_table(rows: list[Parameter]) -> Table:
    table = Table("parameter", "default", "allowed", "meaning", show_edge=False)
    for row in rows:
        table.add_row(row.name, str(row.default_as_ros), row.allowed, row.description)
    return table


def _as_json(rows: list[Parameter]) -> str:
    import json

    fields = ("name", "unit", "description", "allowed")
    entries = [{**{key: getattr(row, key) for key in fields}, "default": row.default_as_ros} for row in rows]
    return json.dumps(entries, indent=2) + "\n"
