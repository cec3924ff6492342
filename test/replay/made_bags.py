"""Bags made by formula: a two-joint arm on a slow sine, seen by a small camera, with faults on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys.store import Typestore

from phyai_ros.replay.bag_writer import writing_store

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
CAMERA, JOINTS = "/camera/front/image_raw", "/joint_states"
NAMES = ("shoulder", "elbow")


def position(t_s: float) -> np.ndarray:
    """Where the arm is: it starts at rest and is slow enough for every limit of the tests."""
    return np.array([0.3 * np.cos(0.8 * t_s), 0.2 * np.cos(0.5 * t_s)])


@dataclass
class MadeBag:
    """Times in seconds. Camera 25 Hz, joints 100 Hz, both stamped when logged."""

    seconds: float = 4.0
    side: int = 8  # of the pictures, pixels
    camera_gap: tuple[float, float] = (0.0, 0.0)  # nothing between these
    lost_every: int = 0  # of so many pictures one is missing
    frozen: tuple[float, float] = (0.0, 0.0)
    still: tuple[float, float] = (0.0, 0.0)  # no joint moves between these
    bigger_after: float = 1e9  # the pictures get twice the size
    late_stamp_at: float = -1.0  # this joint message is stamped half a second early
    missing_joint: bool = False
    stamp_delay_s: float = 0.0
    stamp_shift_s: float = 0.0  # all header stamps, as those of a simulated clock
    more: list[tuple[float, str, str, Any]] = field(default_factory=list)  # (t, topic, type, fields)

    def write(self, path: Path, plugin: StoragePlugin = StoragePlugin.MCAP, compression: str = "") -> Path:
        """A rosbag2 folder at `path`; `compression` file, message or storage."""
        store = writing_store()
        writer = Writer(path, version=9, storage_plugin=plugin)
        if compression:
            writer.set_compression(CompressionMode[compression.upper()], CompressionFormat.ZSTD)
        with writer:
            connections: dict[str, Any] = {}
            for log_ns, topic, kind, msg in sorted(self._messages(store), key=lambda entry: entry[0]):
                if topic not in connections:
                    connections[topic] = writer.add_connection(topic, kind, typestore=store)
                writer.write(connections[topic], log_ns, store.serialize_cdr(msg, kind))
        return path

    def _messages(self, store: Typestore):
        for tick in range(round(self.seconds * 100)):
            t = tick / 100
            yield self._joints(store, t)
            lost = self.lost_every and tick % (4 * self.lost_every) == 0
            if tick % 4 == 0 and not lost and not self.camera_gap[0] < t < self.camera_gap[1]:
                yield self._image(store, t)
        for t, topic, kind, values in self.more:
            yield START_NS + round(t * 1e9), topic, kind, store.types[kind](**values)

    def _joints(self, store: Typestore, t: float):
        names = NAMES[:1] if self.missing_joint else NAMES
        early_s = 0.5 if t == self.late_stamp_at else 0.0
        moved_t = self.still[0] if self.still[0] < t < self.still[1] else t
        kind = "sensor_msgs/msg/JointState"
        msg = store.types[kind](
            header=self._header(store, t - early_s),
            name=list(names),
            position=position(moved_t)[: len(names)],
            velocity=np.zeros(0),
            effort=np.zeros(0),
        )
        return START_NS + round(t * 1e9), JOINTS, kind, msg

    def _image(self, store: Typestore, t: float):
        side = 2 * self.side if t >= self.bigger_after else self.side
        shown = self.frozen[0] if self.frozen[0] < t < self.frozen[1] else t
        pixels = np.full(side * side * 3, round(shown * 25) % 251, np.uint8)
        kind = "sensor_msgs/msg/Image"
        msg = store.types[kind](
            header=self._header(store, t - self.stamp_delay_s),
            height=side,
            width=side,
            encoding="rgb8",
            is_bigendian=0,
            step=3 * side,
            data=pixels,
        )
        return START_NS + round(t * 1e9), CAMERA, kind, msg

    def _header(self, store: Typestore, t: float):
        stamp_ns = START_NS + round((t + self.stamp_shift_s) * 1e9)
        stamp = store.types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
        return store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
