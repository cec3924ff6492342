"""What a check finds: a level, a sentence, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad it is. FAIL: the node would not configure, not activate or not move as meant."""

    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True)
class Check:
    """`area` is what was looked at (parameters, policy, machine, or a topic), `fix` is empty where all is well."""

    area: str
    name: str
    level: Level
    text: str
    fix: str = ""


def ok(area: str, name: str, text: str) -> Check:
    return Check(area, name, Level.OK, text)


def warn(area: str, name: str, text: str, fix: str) -> Check:
    return Check(area, name, Level.WARN, text, fix)


def fail(area: str, name: str, text: str, fix: str) -> Check:
    return Check(area, name, Level.FAIL, text, fix)


def worst(checks: Iterable[Check]) -> Level:
    return max((check.level for check in checks), default=Level.OK)


def split_fix(text: str, otherwise: str = "correct it as the text says") -> tuple[str, str]:
    """A sentence of ours that ends with its fix after a semicolon, as (what, fix); `otherwise` where it has none."""
    what, separator, fix = text.rstrip(".").rpartition("; ")
    return (what, fix) if separator else (text, otherwise)
