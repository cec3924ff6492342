"""Which candidate of an operation runs: the first that can, or one measured to be faster, always with a reason.

Choices are made while an engine is configured, from the tensors of a representative call, and do not change after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phyai_kernels.op import Candidate, Op
from phyai_kernels.profile import Profile, default_folder, load_profile

MARGIN = 0.05  # a candidate that is preferred is only left for one that is faster by more


@dataclass(frozen=True)
class Choice:
    """One decision: the candidate taken, and per candidate why it was taken or not."""

    op: str
    problem: str
    taken: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.op} [{self.problem}] -> {self.taken}"]
        return "\n".join([*lines, *(f"    {name}: {reason}" for name, reason in self.reasons.items())])


def describe_problem(arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Types, shapes and options of a call in one line: the key of a measurement."""
    parts = [text for argument in arguments if (text := _describe(argument))]
    given = {name: value for name, value in sorted(options.items()) if value is not None and value is not False}
    return " ".join([*parts, *(f"{name}={_describe(value)}" for name, value in given.items())])


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(" ", "")
    if isinstance(value, tuple):
        return "(" + " ".join(_describe(item) for item in value) + ")"
    return "" if value is None else str(value)


class Dispatcher:
    """Chooses candidates on one device; `profile` may be missing, and is set aside where it does not fit."""

    def __init__(self, device: torch.device, profile: Profile | None = None) -> None:
        self.device = device
        refusal = "no profile" if profile is None else profile.refuse(device)
        self.profile = profile if refusal is None else None
        self._without = refusal
        self.choices: list[Choice] = []

    def pick(self, op: Op, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """What to call for arguments of these types and shapes; nothing is run, compiled or measured here."""
        problem, candidates = describe_problem(arguments, options), op.candidates
        figures = self.profile.times_us.get(op.name, {}).get(problem, {}) if self.profile else {}
        refused = {c.name: c.refuse(self.device, *arguments, **options) or _failure(figures, c) for c in candidates}
        able = [c for c in candidates if refused[c.name] is None] or [candidates[-1]]
        times = {c.name: figures[c.name] for c in able if c.name in figures and not _failure(figures, c)}
        taken = _choose(able, times)
        reasons = {c.name: self._reason(c, taken, refused[c.name], times) for c in candidates}
        self.choices.append(Choice(op.name, problem, taken.name, reasons))
        return taken.run

    def note(self, op: str, problem: str, taken: str, reasons: dict[str, str]) -> None:
        """Keep a choice that was made elsewhere, for `explain`."""
        self.choices.append(Choice(op, problem, taken, reasons))

    def summary(self) -> str:
        """What was left out altogether and why, or how many choices there are and how many were measured."""
        noted = [choice for choice in self.choices if choice.taken not in choice.reasons]
        if noted:
            return "; ".join(f"{choice.op} {reason}" for choice in noted for reason in choice.reasons.values())
        measured = sum("us measured" in choice.reasons[choice.taken] for choice in self.choices)
        reason = f" ({self._without})" if self._without else ""
        return f"{len(self.choices)} kernels chosen, {measured} by measurement{reason}"

    def explain(self) -> str:
        """Every choice so far, with the reason for each candidate taken or refused."""
        return "\n".join(str(choice) for choice in self.choices)

    def _reason(self, candidate: Candidate, taken: Candidate, refusal: str | None, times: Mapping[str, float]) -> str:
        if refusal is not None:
            return f"refused: {refusal}"
        if candidate.name in times:
            return f"{_compare(candidate, taken, times)}, {times[candidate.name]:.1f} us measured"
        if candidate is taken:
            return f"taken: first that can run ({self._without or 'this call is not in the profile'})"
        return "not taken: " + ("not measured" if times else "a candidate before it can run")


def _choose(able: Sequence[Candidate], times: Mapping[str, float]) -> Candidate:
    """The first, unless another is clearly faster: a smaller difference may be another one in the midst of others."""
    measured = [candidate for candidate in able if candidate.name in times]
    if not measured:
        return able[0]
    fastest = min(measured, key=lambda candidate: times[candidate.name])
    first_us = times.get(able[0].name, math.inf)
    return able[0] if times[fastest.name] >= (1.0 - MARGIN) * first_us else fastest


def _compare(candidate: Candidate, taken: Candidate, times: Mapping[str, float]) -> str:
    slower = times[candidate.name] > min(times.values())
    if candidate is taken:
        return f"taken: preferred, at most {MARGIN:.0%} slower than the fastest" if slower else "taken: fastest"
    return (
        "not taken: slower" if times[candidate.name] >= times[taken.name] else f"not taken: at most {MARGIN:.0%} faster"
    )


def _failure(figures: Mapping[str, float | str], candidate: Candidate) -> str | None:
    figure = figures.get(candidate.name)
    return f"failed when it was measured: {figure}" if isinstance(figure, str) else None


def open_dispatcher(device: torch.device, folder: Path | None = None) -> Dispatcher:
    """A dispatcher with the profile of `device` in `folder` (None: default_folder()), where there is one.

    Raises ValueError for a file that is no profile.
    """
    return Dispatcher(device, load_profile(folder or default_folder(), device))
