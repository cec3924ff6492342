"""One topic of a bag, watched message by message: times, and what images and joint states look like."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_ros.image_bridge import check_message
from phyai_ros.replay.bag_types import NS_PER_S, stamp_of
from phyai_ros.replay.findings import Findings
from phyai_ros.replay.standstill import Standstill

FROZEN_FRAMES = 3  # so many equal pictures in a row are no coincidence
GAP_PERIODS, GAP_LEAST_S = 5.0, 0.05
LEAST_REGULAR = 10  # messages; with fewer there is no rate to speak of
REGULAR_SHARE = 0.75  # of the periods are near the usual one, or messages without stamps come when something happens


@dataclass(frozen=True)
class TopicTimes:
    """Figures of one topic, seconds. Periods are those of the stamps, or of the log times without stamps."""

    count: int
    rate_hz: float
    period_p50_s: float
    period_p99_s: float
    period_max_s: float
    delay_p50_s: float  # stamp to log; NaN without stamps
    delay_p99_s: float
    delay_max_s: float
    backward: int  # stamps older than the one before
    repeated: int  # stamps equal to the one before


class TopicWatch:
    """Collects 16 bytes per message. `look` of a subclass judges the content, `standstill` knows what is no fault."""

    def __init__(self, topic: str, start_ns: int, findings: Findings, standstill: Standstill) -> None:
        self.topic, self.findings, self.standstill = topic, findings, standstill
        self._start_ns = start_ns
        self.log_ns, self.stamps_ns = array("q"), array("q")

    def take(self, log_ns: int, msg: Any) -> None:
        """Note the next message."""
        stamp_ns = stamp_of(msg)
        time_s = (log_ns - self._start_ns) / NS_PER_S
        if self.stamps_ns and stamp_ns and stamp_ns < self.stamps_ns[-1]:
            back_s = (self.stamps_ns[-1] - stamp_ns) / NS_PER_S
            self.findings.add(time_s, "warning", self.topic, "stamp_back", f"the stamp goes back by {back_s:.3f} s")
        self.log_ns.append(log_ns)
        self.stamps_ns.append(stamp_ns)
        self.look(time_s, msg)

    def look(self, time_s: float, msg: Any) -> None:
        """Judge one message at the bag time `time_s`."""

    def finish(self) -> TopicTimes:
        """After the last message."""
        log, stamps = np.array(self.log_ns), np.array(self.stamps_ns)
        stamped = bool(len(stamps)) and bool((stamps > 0).all())
        if not stamped and (stamps > 0).any():
            text = f"{int((stamps == 0).sum())} of {len(stamps)} messages come without a stamp"
            self.findings.add(0.0, "warning", self.topic, "no_stamp", text)
        steps = np.diff(stamps if stamped else log)
        if len(log) >= LEAST_REGULAR and (stamped or _is_regular(steps)):
            self._find_gaps(log, steps)
        delays_s = (log - stamps) / NS_PER_S if stamped else np.array([])
        forward_s = steps[steps > 0] / NS_PER_S
        median_s = percentile(forward_s, 50)
        return TopicTimes(
            len(log),
            1.0 / median_s,
            median_s,
            *(percentile(forward_s, percent) for percent in (99, 100)),
            *(percentile(delays_s, percent) for percent in (50, 99, 100)),
            backward=int((steps < 0).sum()) if stamped else 0,
            repeated=int((steps == 0).sum()) if stamped else 0,
        )

    def _find_gaps(self, log: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
        """Told at the bag time of the last message before the gap."""
        usual_s = percentile(steps / NS_PER_S, 50)
        for index in np.flatnonzero(steps / NS_PER_S > max(GAP_LEAST_S, GAP_PERIODS * usual_s)):
            first_ns, text = int(log[index]), f"no message for {steps[index] / NS_PER_S:.3f} s"
            off = self.standstill.was_off(self.topic, first_ns, int(log[index + 1]))
            about = ("note", self.topic, "pause", f"{text}, while the policy was off")
            about = about if off else ("warning", self.topic, "gap", text)
            self.findings.add((first_ns - self._start_ns) / NS_PER_S, *about)


class ImageWatch(TopicWatch):
    """Also pictures that do not change, and formats that do."""

    def __init__(self, topic: str, start_ns: int, findings: Findings, standstill: Standstill) -> None:
        super().__init__(topic, start_ns, findings, standstill)
        self.formats: dict[str, int] = {}
        self._format = ""
        self._checksum, self._repeats, self._since_s = -1, 0, 0.0
        self._shown_ns = (0, 0)  # first and last stamp of the picture

    def look(self, time_s: float, msg: Any) -> None:
        self._note_format(time_s, msg)
        checksum, stamp_ns = zlib.crc32(msg.data), self.stamps_ns[-1] or self.log_ns[-1]
        if checksum == self._checksum:
            self._repeats += 1
            self._shown_ns = (self._shown_ns[0], stamp_ns)
            return
        self._end_freeze(time_s)
        self._checksum, self._repeats, self._since_s = checksum, 1, time_s
        self._shown_ns = (stamp_ns, stamp_ns)

    def finish(self) -> TopicTimes:
        if self.log_ns:
            self._end_freeze((self.log_ns[-1] - self._start_ns) / NS_PER_S)
        return super().finish()

    def _note_format(self, time_s: float, msg: Any) -> None:
        form = f"{msg.encoding} {msg.width}x{msg.height}" if hasattr(msg, "encoding") else f"compressed ({msg.format})"
        self.formats[form] = self.formats.get(form, 0) + 1
        if form == self._format:
            return
        if self._format:
            text = f"the pictures change from {self._format} to {form}"
            self.findings.add(time_s, "warning", self.topic, "format", text)
        self._format = form
        try:
            check_message(msg)
        except ValueError as error:
            self.findings.add(time_s, "error", self.topic, "unusable", f"cannot be used: {error}")

    def _end_freeze(self, time_s: float) -> None:
        if self._repeats < FROZEN_FRAMES:
            return
        text = f"the same picture {self._repeats} times in a row, for {time_s - self._since_s:.3f} s"
        about = ("note", self.topic, "still", f"{text}, while no joint moved")
        about = about if self.standstill.is_still(*self._shown_ns) else ("warning", self.topic, "frozen", text)
        self.findings.add(self._since_s, *about)


class JointWatch(TopicWatch):
    """Also joints that are missing, and values that are no numbers. `needed` are the names that a policy asks for."""

    def __init__(
        self, topic: str, start_ns: int, findings: Findings, standstill: Standstill, needed: Collection[str] = ()
    ) -> None:
        super().__init__(topic, start_ns, findings, standstill)
        self._needed = set(needed)
        self.names: set[str] = set()

    def look(self, time_s: float, msg: Any) -> None:
        self.names.update(msg.name)
        for field in ("position", "velocity", "effort"):
            values = np.asarray(getattr(msg, field), float)
            if len(values) not in (0, len(msg.name)):
                text = f"{len(values)} {field} values for {len(msg.name)} joints"
                self.findings.add(time_s, "error", self.topic, "length", text)
            elif len(values) and not np.isfinite(values).all():
                joint = msg.name[int(np.argmin(np.isfinite(values)))]
                self.findings.add(time_s, "error", self.topic, "not_finite", f"the {field} of {joint} is not a number")

    def finish(self) -> TopicTimes:
        missing = sorted(self._needed - self.names)
        if missing:
            text = f"never names {', '.join(missing)}; it names {', '.join(sorted(self.names)) or 'nothing'}"
            self.findings.add(0.0, "error", self.topic, "missing_joints", text)
        return super().finish()


def _is_regular(steps: NDArray[np.int64]) -> bool:
    usual = np.median(steps)
    return float(((steps > 0.5 * usual) & (steps < 2.0 * usual)).mean()) >= REGULAR_SHARE


def percentile(values: NDArray[np.floating], percent: float) -> float:
    """NaN where there are no values."""
    return float(np.percentile(values, percent)) if len(values) else math.nan
