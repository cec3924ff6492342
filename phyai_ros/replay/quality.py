"""Data quality of a bag: rates, gaps, stamps, frozen pictures, spread between inputs. One pass over the messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from phyai_ros.replay.bag import Bag, BagMessage, Topic
from phyai_ros.replay.bag_types import NS_PER_S
from phyai_ros.replay.findings import Finding, Findings
from phyai_ros.replay.standstill import JOINT_TYPE, Standstill
from phyai_ros.replay.topic_watch import (
    ImageWatch,
    JointWatch,
    TopicTimes,
    TopicWatch,
    percentile,
)

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
TIMELINE_BINS = 240  # columns of the timeline of a report
FOREIGN_CLOCK_S = 3600.0


@dataclass(frozen=True)
class TopicReport:
    """One topic: what the bag says, its times, the formats of its pictures, and messages per bin of the timeline."""

    topic: Topic
    times: TopicTimes
    formats: tuple[str, ...]
    timeline: tuple[int, ...]


@dataclass(frozen=True)
class QualityReport:
    """Everything known about the data of a bag, without any policy. `spread_s` {p50, p99, max} between input stamps."""

    topics: tuple[TopicReport, ...]
    spread_s: Mapping[str, float]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        topics = {}
        for report in self.topics:
            times = {name: round_known(value) for name, value in asdict(report.times).items()}
            about = {"type": report.topic.type, "formats": list(report.formats), "problem": report.topic.problem}
            topics[report.topic.name] = {**about, **times}
        return {
            "topics": topics,
            "input_spread_s": {name: round_known(value) for name, value in self.spread_s.items()},
            "findings": [finding.to_dict() for finding in self.findings],
        }


class QualityCheck:
    """Give it every message of a bag with `take`, then ask for the report.

    `inputs` are the topics whose stamps belong together (none: all pictures and joint states), `joints` the joint names
    needed per topic, `slop_s` the largest allowed spread.
    """

    def __init__(
        self,
        bag: Bag,
        inputs: Collection[str] = (),
        joints: Mapping[str, Collection[str]] | None = None,
        slop_s: float = 0.1,
    ) -> None:
        self._bag, self._slop_s = bag, slop_s
        self._findings = Findings()
        self._standstill = Standstill(bag.topics.values())
        self._watches = {name: self._watch(topic, (joints or {}).get(name, ())) for name, topic in bag.topics.items()}
        sensors = [name for name, topic in bag.topics.items() if topic.type in (*IMAGE_TYPES, JOINT_TYPE)]
        sensors = [name for name in sensors if not self._standstill.is_own(name)]
        self._newest_ns: dict[str, int] = dict.fromkeys(inputs or sensors, 0)
        self._spreads_ns: list[int] = []
        self._apart = False

    def _watch(self, topic: Topic, joints: Collection[str]) -> TopicWatch:
        common = (topic.name, self._bag.start_ns, self._findings, self._standstill)
        if topic.type in IMAGE_TYPES:
            return ImageWatch(*common)
        return JointWatch(*common, joints) if topic.type == JOINT_TYPE else TopicWatch(*common)

    def take(self, message: BagMessage) -> None:
        self._standstill.take(message)
        watch = self._watches[message.topic]
        watch.take(message.log_ns, message.msg)
        if message.topic in self._newest_ns and watch.stamps_ns[-1]:
            others = [stamp_ns for name, stamp_ns in self._newest_ns.items() if name != message.topic]
            lagged = bool(others) and all(others) and self._newest_ns[message.topic] < min(others)
            self._newest_ns[message.topic] = watch.stamps_ns[-1]
            if lagged:
                self._note_spread(message.log_ns)

    def _note_spread(self, log_ns: int) -> None:
        """Between the newest stamps of the inputs, whenever the one that lags comes; told when it gets too large."""
        newest = self._newest_ns.values()
        spread_ns = max(newest) - min(newest)
        self._spreads_ns.append(spread_ns)
        apart = spread_ns > self._slop_s * NS_PER_S
        if apart and not self._apart:
            late = min(self._newest_ns, key=self._newest_ns.__getitem__)
            text = f"stamped {spread_ns / NS_PER_S:.3f} s before the newest input (allowed: {self._slop_s:g} s)"
            self._findings.add(self._bag.since_start_s(log_ns), "warning", late, "spread", text)
        self._apart = apart

    def report(self) -> QualityReport:
        """Once, after the last message."""
        reports = [self._report_topic(topic) for topic in self._bag.topics.values()]
        for report in reports:
            self._judge(report)
        spreads_s = np.array(self._spreads_ns) / NS_PER_S
        spread = {name: percentile(spreads_s, percent) for name, percent in (("p50", 50), ("p99", 99), ("max", 100))}
        return QualityReport(tuple(reports), spread, tuple(self._findings.list()))

    def _report_topic(self, topic: Topic) -> TopicReport:
        watch = self._watches[topic.name]
        formats = tuple(watch.formats) if isinstance(watch, ImageWatch) else ()
        edges = np.linspace(self._bag.start_ns, self._bag.end_ns + 1, TIMELINE_BINS + 1)
        timeline, _ = np.histogram(np.array(watch.log_ns), edges)
        return TopicReport(topic, watch.finish(), formats, tuple(int(count) for count in timeline))

    def _judge(self, report: TopicReport) -> None:
        name, times = report.topic.name, report.times
        if report.topic.problem:
            self._findings.add(0.0, "warning", name, "unreadable", f"cannot be read: it {report.topic.problem}")
        elif not report.topic.count:
            self._findings.add(0.0, "note", name, "silent", "holds no message")
        elif abs(times.delay_p50_s) > FOREIGN_CLOCK_S:
            text = f"stamps and log times are {times.delay_p50_s / 3600:.0f} h apart: give --clock header"
            self._findings.add(0.0, "error", name, "clock", text)
        if times.repeated:
            self._findings.add(0.0, "note", name, "stamp_repeated", f"{times.repeated} stamps equal the one before")


def round_known(value: float) -> float | int | None:
    """For JSON: six decimals, and null for what is not known."""
    if isinstance(value, int):
        return value
    return round(value, 6) if np.isfinite(value) else None
