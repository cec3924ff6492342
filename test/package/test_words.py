"""Guards against: unfinished work that ships, and paths of somebody's machine in the source."""

from __future__ import annotations

import re

from package.source_tree import ROOT, list_files

TEXT = (".py", ".md", ".rst", ".txt", ".toml", ".xml", ".yaml", ".cmake", ".msg", ".sh", "")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE = re.compile(r"(?<![\w.])/(ho" r"me|ro" r"ot|Us" r"ers|wo" r"rk)/\w")


def find(pattern: re.Pattern[str]) -> list[str]:
    places = []
    for path in list_files(TEXT):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                places.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return places


def test_nothing_is_left_unfinished():
    assert not find(UNFINISHED)


def test_no_path_of_a_machine():
    assert not find(MACHINE)
