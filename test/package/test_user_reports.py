"""Guards against: a reported case that loses its test, or a test of a case that the page does not name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_case_has_a_row_and_a_test_named_after_it():
    rows = {int(number) for number in re.findall(r"^\| R(\d+) \|", (ROOT / "docs/user_reports.md").read_text(), re.M)}
    source = "\n".join(path.read_text() for path in (ROOT / "test").rglob("test_*.py"))
    tests = {int(number) for number in re.findall(r"^def test_r(\d+)_", source, re.M)}
    assert rows == tests == set(range(1, 35))
