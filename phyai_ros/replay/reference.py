"""What was really commanded, or done, while the bag was recorded: the track that a replay is compared with."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phyai_ros.replay.bag import Bag, BagMessage
from phyai_ros.replay.bag_types import stamp_of
from phyai_ros.replay.clockwork import NS_PER_S

JOINTS = "sensor_msgs/msg/JointState"
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
NUMBERS = "std_msgs/msg/Float64MultiArray"
GAP_PERIODS = 5.0  # no value is interpolated over a longer gap


@dataclass(frozen=True)
class ReferenceTopic:
    """Where the track comes from. `shift_s` after a tick its row is compared: 0 for the node's own commands, which
    carry the stamp of their tick, one period for what is reached at the end of it."""

    name: str
    shift_s: float


@dataclass(frozen=True)
class Track:
    """Times [T] in nanoseconds and positions [T, A]; NaN where a joint was not named."""

    topic: ReferenceTopic
    times_ns: NDArray[np.int64]
    positions: NDArray[np.float64]

    def at(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Linear in between, NaN outside and in gaps: [N, A]."""
        values = np.full((len(times_ns), self.positions.shape[1]), np.nan)
        if len(self.times_ns) < 2:
            return values
        after = np.searchsorted(self.times_ns, times_ns, side="left")
        inside = (after > 0) & (after < len(self.times_ns)) | np.isin(times_ns, self.times_ns[[0, -1]])
        right = np.clip(after, 1, len(self.times_ns) - 1)
        span = (self.times_ns[right] - self.times_ns[right - 1]).astype(float)
        median_ns = float(np.median(np.diff(self.times_ns)))
        part = (times_ns - self.times_ns[right - 1]) / np.maximum(span, 1.0)
        between = self.positions[right - 1] + part[:, None] * (self.positions[right] - self.positions[right - 1])
        exact = part[:, None] == 1.0  # a sample itself is fine, also where a gap lies before it
        good = inside[:, None] & (exact | (span <= GAP_PERIODS * median_ns)[:, None])
        return np.where(good, np.where(exact, self.positions[right], between), values)


def find_reference(bag: Bag, candidates: Sequence[ReferenceTopic]) -> ReferenceTopic | None:
    """The first candidate that the bag has messages of, in a type that can be compared."""
    for candidate in candidates:
        topic = bag.topics.get(candidate.name)
        if topic is not None and topic.count and not topic.problem and topic.type in (JOINTS, TRAJECTORY, NUMBERS):
            return candidate
    return None


def check_reference(bag: Bag, name: str) -> None:
    """Raises ValueError where the topic that a user named cannot be compared with."""
    if find_reference(bag, [ReferenceTopic(name, 0.0)]) is None:
        topic = bag.topics.get(name)
        found = f"has the type {topic.type} and {topic.count} messages" if topic else "is not in the bag"
        raise ValueError(f"--compare names {name}, which {found}; allowed are {JOINTS}, {TRAJECTORY} and {NUMBERS}.")


class ReferenceReader:
    """Give it every message with `take`, then ask for the `track`. `names` [A] are the robot's, in action order."""

    def __init__(self, topic: ReferenceTopic, names: Sequence[str], controller_names: Sequence[str]) -> None:
        self._topic, self._names, self._controller_names = topic, list(names), list(controller_names)
        self._times = array("q")
        self._rows: list[NDArray[np.float64]] = []

    def take(self, message: BagMessage) -> None:
        if message.topic != self._topic.name:
            return
        if message.type == TRAJECTORY:
            self._take_trajectory(message)
        elif message.type == NUMBERS:
            self._push(message.log_ns, self._controller_names, message.msg.data)
        else:
            self._push(stamp_of(message.msg) or message.log_ns, message.msg.name, message.msg.position)

    def _take_trajectory(self, message: BagMessage) -> None:
        """From its first point on it stands in place of the one before."""
        start_ns = stamp_of(message.msg) or message.log_ns
        for number, point in enumerate(message.msg.points):
            due_ns = start_ns + point.time_from_start.sec * NS_PER_S + point.time_from_start.nanosec
            if number == 0:
                self._drop_from(due_ns)
            self._push(due_ns, message.msg.joint_names, point.positions)

    def _drop_from(self, time_ns: int) -> None:
        while self._times and self._times[-1] >= time_ns:
            self._times.pop()
            self._rows.pop()

    def _push(self, time_ns: int, names: Sequence[str], values: Sequence[float]) -> None:
        if len(values) != len(names) or (self._times and time_ns <= self._times[-1]):
            return
        place = {name: index for index, name in enumerate(names)}
        row = [values[place[name]] if name in place else np.nan for name in self._names]
        if not np.isnan(row).all():
            self._times.append(time_ns)
            self._rows.append(np.array(row, float))

    def track(self) -> Track:
        rows = np.array(self._rows).reshape(len(self._rows), len(self._names))
        return Track(self._topic, np.array(self._times, np.int64), rows)
