"""The node's pipeline between a scripted robot and a controller model, on one logical clock: all but ROS itself."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.limiter import Limiter
from phyai_core.stepping import SteppedInference
from phyai_core.timekeeping import Timekeeper
from phyai_core.tracking import TrackingGuard
from phyai_core.types import Action, ActionChunk, CameraSpec, Command, Feature, InferenceRequest, PolicySpec
from phyai_ros.chunk_guard import ChunkGuard
from phyai_ros.limit_sources import resolve_limits
from phyai_ros.mailbox import Mailbox
from phyai_ros.motion_guard import MotionGuard
from phyai_ros.output_assembly import make_output
from phyai_ros.outputs.channels import ShadowChannel
from phyai_ros.parameters import build_settings
from phyai_ros.pipeline import Pipeline
from phyai_ros.spec_checks import check_against_spec
from phyai_ros.supervision import Rules
from ros.output_rig import ARRIVAL_NS, CYCLE_NS, DT_NS, EPOCH_NS, JOINTS, PHASE_NS, Robot

HORIZON = 32
DT_S = DT_NS * 1e-9
PARAMETERS = {
    "cameras.keys": ["front"],
    "cameras.front.topic": "front",
    "rtc.mode": "none",
    "rtc.execution_horizon": 8,
    "limits.max_velocity": [1.0],
    "limits.max_acceleration": [4.0],
    "output.profile": "splice",
}
STEPS = np.arange(1, HORIZON + 1)[:, None]

Plan = Callable[[InferenceRequest], np.ndarray]


def slow_plan(request: InferenceRequest) -> np.ndarray:
    """Goes on from the last command at 0.1 rad/s."""
    return request.obs.last_command + 0.1 * DT_S * STEPS * np.array([1.0, -0.5])


@dataclass
class Wrongs:
    """What the sensors do wrong from now on."""

    camera_on: bool = True
    camera_frozen: bool = False
    joints_on: bool = True
    joint_names: tuple[str, ...] = JOINTS
    encoding: str = "rgb8"
    size: int = 4
    position_offset: float = 0.0
    nan: bool = False
    stamp_shift_ns: int = 0
    stuck: bool = False


class PipelineRig:
    """`tick()` is one control period: sensors, pipeline, messages to the controller, four cycles of the controller."""

    def __init__(self, plan: Plan = slow_plan, delay: int = 3, shadow: bool = False, **parameters) -> None:
        joints = tuple(Feature(name) for name in JOINTS)
        self.spec = PolicySpec("rig", HORIZON, DT_S, (CameraSpec("front", 4, 4),), joints, joints, 2)
        values = {name.replace("__", "."): value for name, value in parameters.items()}
        self.settings = check_against_spec(build_settings({**PARAMETERS, **values}), self.spec)
        self.plan, self.wrongs = plan, Wrongs()
        self.robot = Robot("splice", True)
        self.now_ns, self.k = EPOCH_NS, -1
        self.sent: list = []
        self.shadowed: list = []
        self.commands: list[Command] = []
        self._make_pipeline(shadow, delay)
        self.pipeline.begin()

    def _make_pipeline(self, shadow: bool, delay: int) -> None:
        settings, spec = self.settings, self.spec
        limits = resolve_limits(JOINTS, settings.limits)
        refuses = settings.limits.mode == "refuse"
        chunks = ChunkGuard(limits, DT_S, settings.start, refuses)
        limiter = Limiter(limits, DT_S, settings.limits.max_slowdown, settings.limits.max_clip_rad)
        rules = settings.tracking
        tracking = TrackingGuard(JOINTS, rules.max_error, rules.max_effort, rules.time_s)
        self.motion = MotionGuard(chunks, None if refuses else limiter, tracking, settings.start, DT_S)
        config = ExecutorConfig("none", 8, delay_initial=delay, hold_limit_s=settings.executor.hold_limit_s)
        self.executor = RtcExecutor(spec, config, self._infer, self.motion.refuse, lambda: self.now_ns)
        self.executor.fit = self.motion.fit
        self.mailbox = Mailbox(settings, spec, lambda: self.now_ns, steady_now_ns=lambda: self.now_ns)
        channel = ShadowChannel(_channel(self.sent.append), _channel(self.shadowed.append)) if shadow else None
        self.output = make_output(settings, spec, channel.send if shadow else self.sent.append)
        stop = settings.stop
        self.pipeline = Pipeline(
            self.executor,
            self.mailbox,
            self.output,
            Timekeeper(spec, 8),
            ros_now_ns=lambda: self.now_ns,
            on_command=lambda command, stamp_ns: None,
            on_chunk=lambda command, timing, stamp_ns: None,
            steady_now_ns=lambda: self.now_ns,
            motion=self.motion,
            rules=Rules(settings.require_enable, stop.enable_timeout_s, stop.estop_stop == "silence"),
            shadow=[channel] if shadow else (),
        )
        self.delay = delay
        self.inference = SteppedInference(self.executor, lambda request: self.delay)
        self._received = 0

    def tick(self, missed: int = 0) -> Command:
        for _ in range(missed):
            self._pass_period()
        self._pass_period(self._run_node, missed)
        self.commands.append(self.pipeline.record.command)
        return self.commands[-1]

    def run(self, ticks: int) -> list[Command]:
        return [self.tick() for _ in range(ticks)]

    def run_until(self, condition: Callable[[Command], bool], ticks: int = 200) -> Command:
        for _ in range(ticks):
            if condition(command := self.tick()):
                return command
        raise AssertionError(f"not within {ticks} ticks; last: {self.commands[-1].reason}, {self.commands[-1].text}")

    def run_until_moving(self) -> Command:
        return self.run_until(lambda command: command.action is Action.RUN)

    def run_until_rest(self, ticks: int = 60) -> int:
        """Ticks until the controller's reference stands still."""
        for count in range(ticks):
            self.tick()
            if not np.any(self.robot.speeds[-1]):
                return count
        raise AssertionError("the robot did not come to rest")

    def _pass_period(self, node: Callable[[int], None] | None = None, missed: int = 0) -> None:
        self.k += 1
        self.now_ns = EPOCH_NS + self.k * DT_NS
        self._sense()
        if node is not None:
            node(missed)
        for message in self.sent[self._received :]:
            self.robot.receive(message, self.now_ns + ARRIVAL_NS)
        self._received = len(self.sent)
        for cycle in range(DT_NS // CYCLE_NS):
            held = self.robot.position.copy()
            self.robot.cycle(self.now_ns + PHASE_NS + cycle * CYCLE_NS)
            if self.wrongs.stuck:
                self.robot.position = held

    def _run_node(self, missed: int) -> None:
        self.inference.before_tick(self.k)
        self.pipeline.tick(self.k, missed, self.now_ns, 0.0)
        self.inference.after_tick()

    def _sense(self) -> None:
        wrongs, stamp_ns = self.wrongs, self.now_ns - 2_000_000 + self.wrongs.stamp_shift_ns
        if wrongs.joints_on:
            position = dict(zip(JOINTS, self.robot.position + wrongs.position_offset, strict=True))
            values = [float("nan") if wrongs.nan else position.get(name, 0.0) for name in wrongs.joint_names]
            self.mailbox.receive_joints(joint_message(wrongs.joint_names, values, stamp_ns))
        if wrongs.camera_on:
            self._frozen_ns = self._frozen_ns if wrongs.camera_frozen else stamp_ns
            self.mailbox.receive_image("front", image_message(wrongs.encoding, wrongs.size, self._frozen_ns))

    _frozen_ns = 0

    def _infer(self, request: InferenceRequest) -> ActionChunk:
        obs = request.obs.decode()
        rows = np.asarray(self.plan(request), np.float32)
        return ActionChunk(request.epoch, request.seq, request.base_tick, obs.stamp_ns, rows, rows, DT_NS, obs.sources)


def _header(stamp_ns: int) -> SimpleNamespace:
    stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return SimpleNamespace(stamp=stamp, frame_id="")


def joint_message(names, values, stamp_ns: int) -> SimpleNamespace:
    empty = array("d")
    return SimpleNamespace(
        header=_header(stamp_ns), name=list(names), position=array("d", values), velocity=empty, effort=empty
    )


def image_message(encoding: str, size: int, stamp_ns: int) -> SimpleNamespace:
    data = bytes(3 * size * size)
    return SimpleNamespace(
        header=_header(stamp_ns), encoding=encoding, height=size, width=size, step=3 * size, is_bigendian=0, data=data
    )


def _channel(send) -> SimpleNamespace:
    return SimpleNamespace(send=send, take_fault=lambda: None, close=lambda: None)
