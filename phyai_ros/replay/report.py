"""Puts a report together: the same content as report.json for machines and as report.html for people.

Nothing in it depends on the machine or the hour, unless the latencies were measured on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phyai_ros.replay.figures import describe_result, flatten, plain
from phyai_ros.replay.findings import LEVELS, Finding
from phyai_ros.replay.frames import FrameStrip
from phyai_ros.replay.log_findings import find_in_log
from phyai_ros.replay.quality import QualityReport
from phyai_ros.replay.replay_run import ReplayResult
from phyai_ros.replay.requirements import Outcome, Requirement, judge
from phyai_ros.replay.verdict import Verdict, give_verdict
from phyai_ros.settings import Limits


@dataclass(frozen=True)
class Report:
    """`figures` of the replay that is judged, `baseline` those without the what-if changes; None where not asked for.

    `about` are facts on bag and policy for the small print.
    """

    title: str
    duration_s: float
    quality: QualityReport
    findings: tuple[Finding, ...]
    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    about: tuple[str, ...]
    result: ReplayResult | None = None
    figures: dict[str, Any] | None = None
    baseline: dict[str, Any] | None = None
    strip: FrameStrip | None = None

    @property
    def passed(self) -> bool:
        """Whether every requirement is met."""
        return all(outcome.met for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        values = {
            "title": self.title,
            "verdict": {"grade": self.verdict.grade, "sentences": list(self.verdict.sentences)},
            "requirements": [
                {"requirement": str(o.requirement), "value": o.value, "met": o.met} for o in self.outcomes
            ],
            "findings": [finding.to_dict() for finding in self.findings],
            "replay": self.figures,
            "without_changes": self.baseline,
            "data": {name: value for name, value in self.quality.to_dict().items() if name != "findings"},
            "about": list(self.about),
        }
        return plain(values)

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def make_report(
    title: str,
    duration_s: float,
    quality: QualityReport,
    requirements: Sequence[Requirement],
    about: Sequence[str],
    result: ReplayResult | None = None,
    baseline: ReplayResult | None = None,
    limits: Limits | None = None,
    strip: FrameStrip | None = None,
    remarks: Sequence[Finding] = (),
) -> Report:
    """Judge a data check, or a replay (then with the `limits` of its settings); `remarks` are findings beside those.

    Raises ValueError for requirements on figures that there are not.
    """
    found = find_in_log(result, limits) if result is not None else []
    findings = sorted([*quality.findings, *found, *remarks], key=lambda f: (f.time_s, LEVELS.index(f.level), f.topic))
    figures = describe_result(result, limits) if result is not None else None
    before = describe_result(baseline, limits) if baseline is not None else None
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    numbers = flatten(figures or {}) | flatten(quality.to_dict()) | flatten({"findings": counts})
    outcomes = judge(requirements, numbers)
    return Report(
        title,
        duration_s,
        quality,
        tuple(findings),
        give_verdict(figures, findings, outcomes, before),
        tuple(outcomes),
        tuple(about),
        result,
        figures,
        before,
        strip,
    )
