"""What is worth knowing about a bag or a replay, each with the bag time at which it happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

LEVELS = ("error", "warning", "note")  # error: the node would not move, or not as meant
MOST_ALIKE = 5  # of one kind on one topic so many are told one by one


@dataclass(frozen=True)
class Finding:
    """`time_s` is bag time: seconds since the first message. `kind` groups findings that are alike."""

    time_s: float
    level: str
    topic: str
    kind: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "time_s": round(self.time_s, 3)}


class Findings:
    """Collects findings in the order in which they happen; of many that are alike the first few and the number."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._count: Counter[tuple[str, str]] = Counter()

    def add(self, time_s: float, level: str, topic: str, kind: str, text: str) -> None:
        key = (topic, kind)
        self._count[key] += 1
        if self._count[key] <= MOST_ALIKE:
            self._kept.append(Finding(time_s, level, topic, kind, text))

    def count(self, kind: str) -> int:
        """How often something of this kind happened, on all topics together."""
        return sum(number for (_, name), number in self._count.items() if name == kind)

    def list(self) -> list[Finding]:
        """By bag time. Where more of a kind happened than are told, the last one told says how many."""
        kept = sorted(self._kept, key=lambda finding: (finding.time_s, LEVELS.index(finding.level), finding.topic))
        last = {(finding.topic, finding.kind): index for index, finding in enumerate(kept)}
        for (topic, kind), index in last.items():
            more = self._count[(topic, kind)] - MOST_ALIKE
            if more > 0:
                finding = kept[index]
                text = f"{finding.text}; {more} more of this kind follow"
                kept[index] = Finding(finding.time_s, finding.level, topic, kind, text)
        return kept
