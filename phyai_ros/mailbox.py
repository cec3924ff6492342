"""From the newest messages to what the policy sees: complete, fresh, close together in time, or a reason why not.

Callbacks store messages with `receive_*`; the control tick asks with `sample`; decoding happens on the inference
thread. No ROS import: messages only need the fields of sensor_msgs.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from phyai_core.types import Fault, FloatArray, PolicySpec, Reason, Source
from phyai_ros.camera_view import CameraView, info_topic
from phyai_ros.clouds import CloudView, check_cloud
from phyai_ros.image_bridge import check_message
from phyai_ros.input_clocks import InputClocks
from phyai_ros.input_faults import explain_spread, find_absent, find_unusable
from phyai_ros.input_sets import Feed, History, Received, choose_set
from phyai_ros.joint_inbox import JointInbox
from phyai_ros.joints import JointMap, Layout
from phyai_ros.robot_checks import joint_actions
from phyai_ros.sample import InputSet, Picture, Sample
from phyai_ros.settings import Settings
from phyai_ros.stamps import NS_PER_S, SIM_CLOCK_STEP_S, StampLimits

IMAGE_DEPTH = 4  # frames kept per camera to find a set within the slop


class Mailbox:
    """The newest messages of every topic the policy needs. Thread-safe; the lock is held for microseconds."""

    def __init__(
        self,
        settings: Settings,
        spec: PolicySpec,
        ros_now_ns: Callable[[], int],
        sim_time: bool = False,
        steady_now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`settings` have been checked against `spec`. Raises ValueError if the state of `spec` makes no sense."""
        rules = settings.inputs
        tolerance_s = max(rules.future_tolerance_s, SIM_CLOCK_STEP_S if sim_time else 0.0)
        self._rules, self._limits = rules, StampLimits(rules.max_age_s, tolerance_s)
        self._ros_now_ns, self._steady_now_ns = ros_now_ns, steady_now_ns
        self._topics = {camera.key: settings.cameras.by_key[camera.key].topic for camera in spec.cameras}
        self._cloud_specs = {cloud.key: cloud for cloud in spec.clouds}
        self._cloud_topics = dict(zip(self._cloud_specs, rules.cloud_topics, strict=True))
        self._images, self._clouds = self._empty_histories()
        self.views = {camera.key: CameraView(settings.cameras.by_key[camera.key], camera) for camera in spec.cameras}
        self._infos: dict[str, Any] = {}
        self._map = JointMap(spec, settings.joints, bool(settings.tracking.max_effort), joint_actions(settings, spec))
        reach_ns = round((rules.max_age_s + rules.slop_s) * NS_PER_S)
        self._joints = JointInbox(rules.joint_states_topic, self._map, reach_ns)
        self._lock = threading.Lock()
        self._tick, self.newer_than_ns = 0, -1
        self._steps = spec.observation_steps
        self._past: deque[tuple[int, InputSet]] = deque(maxlen=self._steps)  # with their ticks, the last one included
        self.prompt = settings.prompt
        self.received = dict.fromkeys(
            [*self._topics.values(), *self._cloud_topics.values(), rules.joint_states_topic], 0
        )  # messages per topic
        self.clocks = InputClocks(self.received)

    def receive_image(self, key: str, msg: Any, published_stamp_ns: int = 0) -> None:
        """Store an Image or CompressedImage for the camera `key`, published at that ROS time (0: unknown)."""
        camera = self.views[key].settings
        new = self._received(msg, published_stamp_ns, _problem(check_message, msg, camera.depth_range_m))
        self.clocks.note(self._topics[key], None, new.stamp_ns, new.arrival_stamp_ns)
        with self._lock:
            self._images[key].push(new)
            self.received[self._topics[key]] += 1

    def receive_cloud(self, key: str, msg: Any, published_stamp_ns: int = 0) -> None:
        """Store a PointCloud2 for the cloud `key`, published at that ROS time (0: unknown)."""
        topic = self._cloud_topics[key]
        new = self._received(msg, published_stamp_ns, _problem(check_cloud, msg, self._cloud_specs[key]))
        self.clocks.note(topic, None, new.stamp_ns, new.arrival_stamp_ns)
        with self._lock:
            self._clouds[key].push(new)
            self.received[topic] += 1

    def receive_info(self, key: str, msg: Any) -> None:
        """Store the CameraInfo of a camera that is undistorted by it."""
        self._infos[key] = msg

    def receive_joints(self, msg: Any, published_stamp_ns: int = 0) -> None:
        """Store a JointState, published at that ROS time (0: unknown)."""
        with self._lock:
            layout = self._joints.layout(msg.name)
        new = self._received(msg, published_stamp_ns, self._map.check(msg, layout), layout)
        self.clocks.note(self._rules.joint_states_topic, layout.joints, new.stamp_ns, new.arrival_stamp_ns)
        with self._lock:
            self._joints.push(new)
            self.received[self._rules.joint_states_topic] += 1

    def require_newer_than(self, stamp_ns: int) -> None:
        """From now on offer only sets whose oldest stamp is newer (ROS time): nothing seen before a reset or resume."""
        self.newer_than_ns = stamp_ns

    def clear(self) -> None:
        """Forget all messages, as after a jump of the ROS clock."""
        with self._lock:
            self._images, self._clouds = self._empty_histories()
            self._joints.clear()
        self.newer_than_ns = -1

    def _empty_histories(self) -> tuple[dict[str, History], dict[str, History]]:
        return tuple({key: History(IMAGE_DEPTH) for key in keys} for keys in (self._topics, self._cloud_topics))

    def sample(self, now_ros_ns: int, tick: int, last_command: FloatArray | None = None) -> Sample:
        """The newest usable set at this tick, or the fault that prevents one. Neither waits nor decodes.

        `last_command` [A] is the row emitted last; None before the first, when the measured pose stands for it. A tick
        may ask again.
        """
        self._tick = tick
        sample = self._choose(now_ros_ns, last_command)
        if self._steps == 1:
            return sample
        if sample.obs is None:
            self._past.clear()  # what comes after a gap is more than a tick away from what came before
            return sample
        while self._past and self._past[-1][0] >= tick:  # asked again, or the ticks count anew after an activation
            self._past.pop()
        before = list(self._past)[1 - self._steps :]
        history = tuple(obs for _, obs in before if obs.stamp_ns > self.newer_than_ns)
        self._past.append((tick, sample.obs))
        return replace(sample, obs=replace(sample.obs, history=history))

    def _choose(self, now_ros_ns: int, last_command: FloatArray | None) -> Sample:
        feeds, fault = self._look(now_ros_ns)
        seen = {"ages": self._ages(feeds, now_ros_ns), "newest_ns": _newest(feeds)}
        if fault:
            return Sample(None, fault, **seen)
        chosen = choose_set([feed.items for feed in feeds], round(self._rules.slop_s * NS_PER_S))
        if chosen is None:
            return Sample(None, explain_spread(feeds, self._rules.slop_s), **seen)
        stamps_ns = [item.stamp_ns for item in chosen]
        spread_s = (max(stamps_ns) - min(stamps_ns)) / NS_PER_S
        if min(stamps_ns) <= self.newer_than_ns:
            topic = feeds[stamps_ns.index(min(stamps_ns))].topic
            fault = Fault(Reason.WAITING_INPUT, f"waiting for a message on {topic} newer than the restart")
            return Sample(None, fault, spread_s=spread_s, **seen)
        return Sample(self._assemble(feeds, chosen, last_command), None, spread_s=spread_s, **seen)

    def _look(self, now_ns: int) -> tuple[list[Feed], Fault | None]:
        """The inputs as they are now, and what is wrong with the newest message of any."""
        with self._lock:
            cameras = [history.feed(self._topics[key]) for key, history in self._images.items()]
            cameras += [history.feed(self._cloud_topics[key]) for key, history in self._clouds.items()]
            joints, missing = self._joints.feeds()
            seen = list(self._joints.seen) if missing else []
        for key, view in self.views.items():
            if view.settings.undistort and key not in self._infos:
                topic = info_topic(view.settings)
                return [*cameras, *joints], Fault(Reason.INPUT_MISSING, f"no message yet on {topic}")
        feeds = [*cameras, *joints]
        absent = find_absent(cameras, self._rules.joint_states_topic, missing, seen)
        return feeds, absent or find_unusable(feeds, now_ns, self._limits)

    def _received(self, msg: Any, published_ns: int, problem: str, layout: Layout | None = None) -> Received:
        stamp_ns = msg.header.stamp.sec * NS_PER_S + msg.header.stamp.nanosec
        now_ros_ns, now_ns = self._ros_now_ns(), self._steady_now_ns()
        if stamp_ns == 0 and self._rules.zero_stamps == "arrival":
            stamp_ns = now_ros_ns
        return Received(msg, stamp_ns, now_ns, self._tick, now_ros_ns, published_ns, problem, layout)

    def _ages(self, feeds: Sequence[Feed], now_ns: int) -> dict[str, float]:
        ages = dict.fromkeys(self.received, math.nan)
        for feed in feeds:  # of several publishers of joints the oldest comes last, and counts
            if feed.items:
                ages[feed.topic] = (now_ns - feed.items[-1].stamp_ns) / NS_PER_S
        return ages

    def _assemble(self, feeds: Sequence[Feed], chosen: Sequence[Received], command: FloatArray | None) -> InputSet:
        joints = sorted((item for item in chosen if item.layout), key=lambda item: item.stamp_ns)
        values = self._map.collect([(item.msg, item.layout) for item in joints])
        measured = self._map.measured(values)
        last_command = measured.copy() if command is None else command
        sources = [_source(feed.topic, item) for feed, item in zip(feeds, chosen, strict=True)]
        return InputSet(
            stamp_ns=min(item.stamp_ns for item in chosen),
            state=self._map.state(values, last_command),
            measured=measured,
            last_command=self._map.to_policy(last_command),
            prompt=self.prompt,
            sources=tuple(sources),
            images={
                key: Picture(topic, item.msg, self.views[key], self._infos.get(key))
                for (key, topic), item in zip(self._topics.items(), chosen, strict=False)
            },
            clouds={
                key: CloudView(topic, item.msg, self._cloud_specs[key])
                for (key, topic), item in zip(self._cloud_topics.items(), chosen[len(self._topics) :], strict=False)
            },
            effort=self._map.effort(values),
        )


def _newest(feeds: Sequence[Feed]) -> dict[str, int]:
    stamps = sorted((feed.items[-1].stamp_ns, feed.topic) for feed in feeds if feed.items)
    return {topic: stamp_ns for stamp_ns, topic in stamps}


def _source(topic: str, item: Received) -> Source:
    return Source(
        topic, item.stamp_ns, item.arrival_ns, item.arrival_tick, item.arrival_stamp_ns, item.published_stamp_ns
    )


def _problem(check: Callable[[Any, Any], None], msg: Any, wanted: Any) -> str:
    try:
        check(msg, wanted)
    except ValueError as error:
        return f"cannot be used: {error}"
    return ""
