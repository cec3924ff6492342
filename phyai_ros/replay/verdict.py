"""A replay in a few sentences: does the node see what it needs, would it have moved, kept up, moved alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phyai_ros.replay.findings import Finding
from phyai_ros.replay.requirements import Outcome

WORDS = {"pass": "Nothing speaks against it", "look": "Look at the findings", "fail": "Not fit to move a robot"}


@dataclass(frozen=True)
class Verdict:
    """`grade` is pass, look (warnings) or fail (errors, or a requirement that is not met)."""

    grade: str
    sentences: tuple[str, ...]

    @property
    def headline(self) -> str:
        return WORDS[self.grade]


def give_verdict(
    figures: dict[str, Any] | None,
    findings: Sequence[Finding],
    outcomes: Sequence[Outcome],
    baseline: dict[str, Any] | None = None,
) -> Verdict:
    """`figures` of the replay (figures.describe_result); None where only the data were looked at. `baseline` are those
    without the changes of a what-if."""
    levels = [finding.level for finding in findings]
    failed = [outcome for outcome in outcomes if not outcome.met]
    grade = "fail" if failed or "error" in levels else "look" if "warning" in levels else "pass"
    sentences = [f"Required, but {outcome}." for outcome in failed]
    if figures is not None:
        sentences += [_tell_motion(figures), _tell_time(figures["timing"])]
        sentences += [_tell_change(baseline, figures)] if baseline is not None else []
        sentences += _tell_likeness(figures)
    counts = [
        f"{levels.count(level)} {level}{'s' * (levels.count(level) != 1)}" for level in ("error", "warning", "note")
    ]
    return Verdict(grade, (*sentences, f"Findings: {', '.join(counts)}."))


def _tell_motion(figures: dict[str, Any]) -> str:
    if not figures["run_ticks"]:
        return "The robot would never have moved."
    share = figures["run_ticks"] / figures["ticks"]
    parts = [f"It would have moved in {share:.0%} of the time"]
    parts.append(_times(figures["holds"], "held"))
    parts.append(_times(figures["stops"], "braked to a stop"))
    starved = figures["starved_ticks"]
    parts.append(f"and starved for {starved} ticks" if starved else "and never starved")
    return ", ".join(parts) + "."


def _times(count: int, verb: str) -> str:
    how_often = {0: f"never {verb}", 1: f"{verb} once", 2: f"{verb} twice"}
    return how_often.get(count, f"{verb} {count} times")


def _tell_time(timing: dict[str, Any]) -> str:
    if math.isnan(timing["x"]):
        return "No chunk was executed after another one, so nothing can be said about time."
    kept = "inference keeps up" if timing["bound"] == "environment" else "inference is the bottleneck"
    return (
        f"With an inference of {timing['l_inference']['p50']:.3g} s (p99 {timing['l_inference']['p99']:.3g} s) for a "
        f"window of {timing['l_env']:.3g} s, {kept}: X {timing['x']:.3g}, Y {timing['y']:.3g}."
    )


def _tell_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    ticks = f"starved ticks {before['starved_ticks']} to {after['starved_ticks']}"
    counts = [f"{name} {before[name]} to {after[name]}" for name in ("holds", "stops")]
    ratios = [f"{name.upper()} {before['timing'][name]:.3g} to {after['timing'][name]:.3g}" for name in ("x", "y")]
    return f"From {before['scenario']} to {after['scenario']}: {', '.join([*ratios, *counts, ticks])}."


def _tell_likeness(figures: dict[str, Any]) -> list[str]:
    sentences = []
    if figures.get("parity"):
        parity = figures["parity"]
        sentences.append(f"{parity['equal']} of {parity['both']} commands of the live run come out the same.")
    comparison = figures["comparison"]
    if not comparison or not comparison["ticks"]:
        return [*sentences, "There was nothing recorded to compare the commands with."]
    loop = comparison["open_loop"]
    sentences.append(f"Against {comparison['topic']} the mean error is {comparison['mean_error']:.3g}.")
    if not math.isnan(loop["ratio"]):
        better = "better" if loop["ratio"] < 1 else "no better"
        errors = f"{loop['error']:.3g} against {loop['hold_last']:.3g}"
        sentences.append(f"Whole chunks foretell it {better} than holding still ({errors}).")
    return sentences
