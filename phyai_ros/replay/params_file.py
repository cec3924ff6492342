"""Parameter files of ROS nodes, read without ROS: what a file says for one node, as flat dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

SECTION = "ros__parameters"


def read_params_file(path: Path, node: str = "/policy") -> dict[str, Any]:
    """{dotted name: value} of every section that fits `node` (full name); a later section wins, as in ROS.

    Raises ValueError naming the file and what is wrong with it.
    """
    try:
        with path.open() as file:  # from a stream, so that an error names the file and not a string
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as a parameter file: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a parameter file; it has to begin with a node name such as /**:.")
    sections = list(_sections(content, ""))
    if not sections:
        raise ValueError(f"{path} has no section {SECTION}; put the parameters under /**: {SECTION}:.")
    values: dict[str, Any] = {}
    for name, section in sections:
        if _fits(name, node):
            values.update(_flatten(section, ""))
    if not values:
        names = ", ".join(name for name, _ in sections)
        raise ValueError(f"{path} has parameters for {names}, none for the node {node}; name it so, or write /**.")
    return values


def _sections(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Namespaces may be written as one name or nested."""
    for key, value in content.items():
        name = f"{prefix}/{str(key).strip('/')}"
        if isinstance(value, dict) and isinstance(value.get(SECTION), dict):
            yield name, value[SECTION]
        elif isinstance(value, dict):
            yield from _sections(value, name)


def _fits(pattern: str, node: str) -> bool:
    """`/**` stands for any number of names, the node's own included; `/*` for one."""
    if pattern == "/**":
        return True
    if pattern.startswith("/**/"):
        return any(_fits(pattern[3:], "/" + rest) for rest in _tails(node))
    return pattern.count("/") == node.count("/") and fnmatchcase(node, pattern)


def _tails(node: str) -> Iterator[str]:
    names = node.strip("/").split("/")
    for first in range(len(names)):
        yield "/".join(names[first:])


def _flatten(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
