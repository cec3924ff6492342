"""Requirements that turn a replay into a gate: `open_loop.ratio<1`, `stops<=0`, `comparison.mean_error<0.05`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}
PATTERN = re.compile(r"^\s*([\w./-]+)\s*(<=|>=|==|<|>)\s*(\S+)\s*$")


@dataclass(frozen=True)
class Requirement:
    """One figure of the report and what it has to be. Parse it with `parse_requirement`."""

    name: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Outcome:
    """What a requirement came to. A figure that is not known does not meet it."""

    requirement: Requirement
    value: float

    @property
    def met(self) -> bool:
        return not math.isnan(self.value) and OPERATORS[self.requirement.sign](self.value, self.requirement.bound)

    def __str__(self) -> str:
        found = "is not known" if math.isnan(self.value) else f"is {self.value:.6g}"
        return f"{self.requirement.name} {found}, {'as' if self.met else 'not'} {self.requirement.sign} " + (
            f"{self.requirement.bound:g}"
        )


def parse_requirement(text: str) -> Requirement:
    """Raises ValueError saying how a requirement is written."""
    match = PATTERN.match(text)
    try:
        return Requirement(match[1], match[2], float(match[3]))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"--require is {text!r}; allowed is a figure of report.json, one of {' '.join(OPERATORS)}, and a number, "
            "for example open_loop.ratio<1."
        ) from error


def judge(requirements: Sequence[Requirement], figures: Mapping[str, float]) -> list[Outcome]:
    """`figures` {dotted name: value}; the front of a name may be left out. Raises ValueError for unknown names."""
    return [Outcome(requirement, _find(requirement.name, figures)) for requirement in requirements]


def _find(name: str, figures: Mapping[str, float]) -> float:
    fitting = [full for full in figures if full == name or full.endswith(f".{name}")]
    if not fitting:
        near = get_close_matches(name, figures, n=3) or sorted(figures)[:5]
        raise ValueError(
            f"--require names {name}, which this replay does not have; near to it are {', '.join(near)}. "
            "Figures of a policy need --params."
        )
    return figures[min(fitting, key=len)]
