"""The parameter reference and the YAML template, both written from the parameter table.

`python -m phyai_ros.parameter_docs` rewrites docs/reference/parameters.md and config/policy.yaml of a source tree.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from phyai_ros.parameter_table import Parameter, is_group, parameter_table
from phyai_ros.settings import KEYED, Settings

MOST_COLUMNS = 120
EXAMPLE_CAMERA, EXAMPLE_TOPIC = "front", "camera/front/image_raw"
REFERENCE_PATH, TEMPLATE_PATH = Path("docs/reference/parameters.md"), Path("config/policy.yaml")

_MEMBERS = {
    "cameras": (KEYED["cameras"].__doc__ or "").strip(),
    "outputs": "One output, for each key in outputs.keys. It has to name its joints.",
}
REFERENCE_HEAD = """\
# Parameters of the policy node

Made from the parameter table by `phyai-ros params`; [config/policy.yaml](../../config/policy.yaml) is the same table as
a parameter file. All parameters are read when the node is configured: change one with `ros2 param set`, then clean up
and configure again. A wrong value fails the configuration with the name, the value and what is allowed.
"""
TEMPLATE_HEAD = """\
# All parameters of the policy node with their defaults, for one camera named front. Copy it and keep what you change.
# Do not mix 2 and 2.0 in one list, and do not write empty lists: ROS reads neither.
/**:
  ros__parameters:
"""


def reference_markdown() -> str:
    """The reference page: a table per group."""
    parts = [REFERENCE_HEAD]
    for group, rows in groupby(parameter_table(["<key>"], ["<key>"]), key=_group_of):
        parts += [f"## {group or 'Node'}", _group_text(group)] if group else ["## Node"]
        parts.append("\n".join(_markdown_table(rows)))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def yaml_template() -> str:
    """A parameter file with every parameter at its default, described in comments."""
    lines = [TEMPLATE_HEAD.rstrip()]
    for group, rows in groupby(parameter_table([EXAMPLE_CAMERA]), key=_group_of):
        depth = group.count(".") + 1 if group else 0
        entries = [line for row in rows for line in _yaml_lines(row, _indent(depth))]
        if group:
            empty = all(line.lstrip().startswith("#") for line in entries)  # YAML has no group without entries
            head = f"{group.rpartition('.')[2]}:  # {_group_text(group).splitlines()[0]}"
            lines += [f"{_indent(depth - 1)}{'# ' if empty else ''}{head}"]
        lines += entries
    return "\n".join(lines) + "\n"


def write_all(root: Path) -> None:
    """Write both files below the root of a source tree."""
    for path, text in ((REFERENCE_PATH, reference_markdown()), (TEMPLATE_PATH, yaml_template())):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def _markdown_table(rows: Iterable[Parameter]) -> Iterable[str]:
    yield "| parameter | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| `{row.name}` | `{_yaml_value(row.default_as_ros)}` | {row.allowed} | {_escape(row.description)} |"


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


def _yaml_lines(row: Parameter, indent: str) -> Iterable[str]:
    comment = f"{row.description}. Allowed: {row.allowed}."
    yield from textwrap.wrap(comment, MOST_COLUMNS, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    leaf, value = row.name.rpartition(".")[2], _example(row)
    yield f"{indent}# {leaf}: []" if value == [] else f"{indent}{leaf}: {_yaml_value(value)}"


def _example(row: Parameter) -> Any:
    examples = {"cameras.keys": [EXAMPLE_CAMERA], f"cameras.{EXAMPLE_CAMERA}.topic": EXAMPLE_TOPIC}
    return examples.get(row.name, row.default_as_ros)


def _yaml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_yaml_value(entry) for entry in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0") + ("0" if value == int(value) else "")
    return f'"{value}"' if isinstance(value, str) else str(value)


def _indent(depth: int) -> str:
    return "  " * (depth + 2)


def _group_of(row: Parameter) -> str:
    return row.name.rpartition(".")[0]


def _group_text(group: str) -> str:
    if "." in group:
        return _MEMBERS[group.partition(".")[0]]
    annotation = Settings.model_fields[group].annotation
    return (annotation.__doc__ or "").strip() if is_group(annotation) else ""


if __name__ == "__main__":
    write_all(Path(__file__).parents[1])
