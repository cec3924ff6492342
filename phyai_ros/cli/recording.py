"""Listens to a policy node and the simulated robot, by topics only, and keeps what a run record needs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from phyai_ros.msg import ActionChunk, ControlTiming, PolicyStatus
from phyai_ros.run_record import Episode, RunRecord

if TYPE_CHECKING:
    from rclpy.node import Node

DEPTH = 200
TICK_ERROR_WINDOW_S = 10.0  # what the tick_error_* fields of PolicyStatus look back on


class Recorder:
    """The newest of each topic (`status`, `timing`, `image`) and everything that a RunRecord keeps.

    Callbacks run in the thread that spins `node`; the rest may be called from any other.
    """

    def __init__(self, node: Node, mode: str, with_images: bool = False) -> None:
        self._mode = mode
        self._lock = threading.Lock()
        self._episode_ended = threading.Condition(self._lock)
        self._origin_ns = time.time_ns()
        self._commands: list[JointState] = []
        self._chunks: list[ActionChunk] = []
        self._timings: list[ControlTiming] = []
        self._last_active: PolicyStatus | None = None
        self._windows: list[tuple[float, PolicyStatus]] = []
        self.episodes: list[Episode] = []
        self.episode: dict[str, Any] = {}
        self.status: PolicyStatus | None = None
        self.image: Image | None = None
        self._subscribe(node, with_images)

    def _subscribe(self, node: Node, with_images: bool) -> None:
        latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        topics: list[tuple[type, str, Callable[[Any], None], QoSProfile | int]] = [
            (JointState, "policy/command", self._keep(self._commands), DEPTH),
            (ActionChunk, "policy/chunk", self._keep(self._chunks), DEPTH),
            (ControlTiming, "policy/timing", self._keep(self._timings), DEPTH),
            (PolicyStatus, "policy/status", self._note_status, DEPTH),
            (String, "sim_robot/episode", self._note_episode, latched),
        ]
        if with_images:
            topics.append((Image, "camera/front/image_raw", self._note_image, newest))
        for message_type, topic, callback, qos in topics:
            node.create_subscription(message_type, topic, callback, qos)

    @property
    def timing(self) -> ControlTiming | None:
        """Of the chunk adopted last."""
        return self._timings[-1] if self._timings else None

    def wait_for_episode(self, ended: int, timeout_s: float) -> bool:
        """Wait until more than `ended` episodes have ended, at most `timeout_s`. True when they have."""
        with self._episode_ended:
            return self._episode_ended.wait_for(lambda: len(self.episodes) > ended, timeout_s)

    def freeze(self) -> RunRecord:
        """What was seen so far, as columns."""
        with self._lock:
            commands, chunks, timings = list(self._commands), list(self._chunks), list(self._timings)
        last = self._last_active
        return RunRecord(
            mode=self._mode,
            rtc_mode=last.rtc_mode if last else "",
            joint_names=tuple(commands[0].name) if commands else (),
            dt_s=chunks[0].dt if chunks else float("nan"),
            command_times_s=self._times_s(commands),
            command_rows=np.array([message.position for message in commands], np.float64),
            chunk_times_s=self._times_s(chunks),
            chunk_epochs=np.array([message.epoch for message in chunks], np.float64),
            chunk_entry_rows=np.array([message.entry_row for message in chunks], np.float64),
            chunk_actions=np.array([np.reshape(m.actions, (m.rows, m.columns)) for m in chunks], np.float64),
            timing=_numeric_columns(timings),
            status=_numbers(last) if last else {},
            tick_errors_s=np.array([_tick_errors(status) for status in self._whole_windows()]).reshape(-1, 3),
            episodes=tuple(self.episodes),
        )

    def _keep(self, into: list) -> Callable[[Any], None]:
        def callback(message: Any) -> None:
            with self._lock:
                into.append(message)

        return callback

    def _note_status(self, message: PolicyStatus) -> None:
        self.status = message
        if message.state == "inactive":  # the farewell of the node; its counters say nothing
            return
        self._last_active = message
        now_s = self._time_s(message)
        if not self._windows or now_s - self._windows[-1][0] >= TICK_ERROR_WINDOW_S:
            self._windows.append((now_s, message))

    def _whole_windows(self) -> list[PolicyStatus]:
        """Statuses at least one window apart, the last of the run included; the very first has seen too little."""
        statuses = [status for _, status in self._windows[1:]]
        return statuses + ([self._last_active] if self._last_active is not None else [])

    def _note_episode(self, message: String) -> None:
        self.episode = report = json.loads(message.data)
        if report["end_ns"] is None:
            return
        start_s, end_s = ((report[key] - self._origin_ns) * 1e-9 for key in ("start_ns", "end_ns"))
        episode = Episode(report["episode"], start_s, end_s, report["outcome"], report["real_time_factor"])
        with self._episode_ended:
            self.episodes.append(episode)
            self._episode_ended.notify_all()

    def _note_image(self, message: Image) -> None:
        self.image = message

    def _time_s(self, message: Any) -> float:
        stamp = message.header.stamp
        return (stamp.sec * 1_000_000_000 + stamp.nanosec - self._origin_ns) * 1e-9

    def _times_s(self, messages: list) -> np.ndarray:
        return np.array([self._time_s(message) for message in messages], np.float64)


def _numbers(message: Any) -> dict[str, float]:
    """The fields of a message that are one number each."""
    fields = {name: getattr(message, name) for name in message.get_fields_and_field_types()}
    return {name: float(value) for name, value in fields.items() if isinstance(value, (int, float))}


def _numeric_columns(messages: list) -> dict[str, np.ndarray]:
    rows = [_numbers(message) for message in messages]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _tick_errors(status: PolicyStatus) -> tuple[float, float, float]:
    return status.tick_error_p50, status.tick_error_p99, status.tick_error_max
