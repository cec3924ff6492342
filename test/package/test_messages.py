"""Guards against: quantities without a unit, messages that CMake forgets, generated code older than its message."""

from __future__ import annotations

import re

import pytest

from package.source_tree import ROOT

UNIT = re.compile(r"\b(s|seconds|rad|hz|ticks|actions?|units|l_env)\b|row-major| - 1", re.IGNORECASE)
MESSAGES = {path.stem: path.read_text() for path in sorted((ROOT / "msg").glob("*.msg"))}
FIELD = re.compile(r"^(?P<type>[\w/]+(\[\])?)\s+(?P<name>[a-z]\w*)\s*(#\s*(?P<comment>.*))?$")


def list_fields(text: str) -> list[tuple[str, str, str]]:
    """(type, name, comment) of each field; a field without a comment continues the one above it."""
    fields, comment = [], ""
    for line in text.splitlines():
        if field := FIELD.match(line):
            comment = field["comment"] or comment
            fields.append((field["type"], field["name"], comment))
    return fields


@pytest.mark.parametrize("name", MESSAGES)
def test_every_quantity_has_a_unit(name):
    header = " ".join(line for line in MESSAGES[name].splitlines() if line.startswith("#"))
    for kind, field, comment in list_fields(MESSAGES[name]):
        if kind.startswith("float"):
            assert UNIT.search(comment) or "Seconds." in header, f"{name}.{field}: {comment!r} names no unit"


def test_cmake_generates_every_message():
    named = re.findall(r'"msg/(\w+)\.msg"', (ROOT / "CMakeLists.txt").read_text())
    assert named == list(MESSAGES)


@pytest.mark.parametrize("name", MESSAGES)
def test_the_generated_message_is_the_one_in_the_source(name):
    generated = getattr(pytest.importorskip("phyai_ros.msg"), name)
    assert list(generated.get_fields_and_field_types()) == [field for _, field, _ in list_fields(MESSAGES[name])]
