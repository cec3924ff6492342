"""An executor, an output, a controller model and a lagging robot on one logical clock: all but ROS."""

from __future__ import annotations

import numpy as np

from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.stepping import SteppedInference
from phyai_core.types import ActionChunk, Command, Feature, InferenceRequest, PolicySpec
from phyai_ros.outputs import load_output
from phyai_ros.outputs.base import OutputConfig
from phyai_ros.sim.controllers import JointTrajectoryController, Trajectory

DT_NS = 40_000_000
CYCLE_NS = 10_000_000  # of the controller, 100 Hz
ARRIVAL_NS, PHASE_NS = 1_500_000, 3_000_000  # after the tick: the message arrives, the controller's next cycle
EPOCH_NS = 1_700_000_000_000_000_000
LAG_S = 0.06
HORIZON = 32
JOINTS = ("a", "b")
MAX_ACCELERATION = 4.0


def wave(steps: np.ndarray) -> np.ndarray:
    """Displacement [N, A] after `steps` periods from rest, at most 3 rad/s^2."""
    angle = np.pi * steps[:, None] * DT_NS * 1e-9
    return np.array([0.3, -0.2]) * (1 - np.cos(angle))


def ramp(steps: np.ndarray) -> np.ndarray:
    """Forward at 0.5 rad/s after half a second of acceleration."""
    time_s = steps[:, None] * DT_NS * 1e-9
    return np.array([1.0, 0.4]) * np.where(time_s < 0.5, 0.5 * time_s**2, 0.125 + 0.5 * (time_s - 0.5))


def make_config(**changes) -> OutputConfig:
    fields = {"joint_names": JOINTS, "dt_s": DT_NS * 1e-9, "max_acceleration": (MAX_ACCELERATION,) * 2}
    return OutputConfig(**{**fields, **changes})


class Robot:
    """A joint_trajectory_controller at 100 Hz in front of joints that lag by 60 ms."""

    def __init__(self, family: str, desired: bool) -> None:
        self.controller = JointTrajectoryController(JOINTS, family, interpolate_from_desired_state=desired)
        self.position, self.velocity = np.zeros(2), np.zeros(2)
        self.rejections: list[str] = []
        self.references: list[np.ndarray] = []  # one per cycle
        self.speeds: list[np.ndarray] = []
        self.times_ns: list[int] = []
        self.controller.activate(self.position)

    def receive(self, message, now_ns: int) -> None:
        reason = self.controller.accept(Trajectory.from_message(message), now_ns)
        if reason is not None:
            self.rejections.append(reason)

    def cycle(self, now_ns: int) -> None:
        command = self.controller.update(now_ns, CYCLE_NS, self.position, self.velocity)
        self.velocity = (command - self.position) / LAG_S
        self.position = self.position + self.velocity * CYCLE_NS * 1e-9
        self.references.append(command)
        self.speeds.append(self.controller.reference[1])
        self.times_ns.append(now_ns + CYCLE_NS)

    @property
    def largest_acceleration(self) -> float:
        """Of the reference, by second differences."""
        return float(np.abs(np.diff(self.references, 2, axis=0)).max() / (CYCLE_NS * 1e-9) ** 2)


class TrajectoryRig:
    """`tick()` is one control period; messages reach the robot a little later, its controller has its own phase."""

    def __init__(self, family="replace", desired=True, profile="splice", delay=6, curve=wave, **config) -> None:
        self.robot = Robot(family, desired)
        self.messages: list = []
        self.output = load_output("joint_trajectory")(make_config(profile=profile, **config), self.messages.append)
        self.output.start(np.zeros(2), EPOCH_NS)
        self._curve = curve
        joints = tuple(Feature(name) for name in JOINTS)
        spec = PolicySpec("rig", HORIZON, DT_NS * 1e-9, (), joints, joints, latent_dim=3, num_denoise_steps=5)
        settings = ExecutorConfig(execution_horizon=8, delay_initial=delay, hold_limit_s=1e9)
        self.executor = RtcExecutor(spec, settings, self._infer, now_ns=lambda: 0)
        self.inference = SteppedInference(self.executor, lambda request: delay)
        self.k = -1
        self._received = 0

    def stamp_ns(self, k: int) -> int:
        return EPOCH_NS + k * DT_NS

    def tick(self, fault=None, missed: int = 0, silent: bool = False) -> Command:
        """`missed` ticks pass first in which this process does nothing while the controller goes on."""
        for _ in range(missed):
            self.k += 1
            self._run_robot()
        self.k += 1
        self.inference.before_tick(self.k)
        observed = self.output.reference_at(self.k).position
        command = self.executor.tick(self.k, 0, observed, fault, missed)
        self.inference.after_tick()
        assert self.output.update(command, self.stamp_ns(self.k)) is None
        self._run_robot()
        return command

    def run(self, ticks: int, **kwargs) -> list[Command]:
        return [self.tick(**kwargs) for _ in range(ticks)]

    def die(self, ticks: int) -> None:
        """The process is gone; only the robot goes on."""
        for _ in range(ticks):
            self.k += 1
            self._run_robot()

    def _run_robot(self) -> None:
        start_ns = self.stamp_ns(self.k)
        for message in self.messages[self._received :]:
            self.robot.receive(message, start_ns + ARRIVAL_NS)
        self._received = len(self.messages)
        for cycle in range(DT_NS // CYCLE_NS):
            self.robot.cycle(start_ns + PHASE_NS + cycle * CYCLE_NS)

    def _infer(self, request: InferenceRequest) -> ActionChunk:
        """The curve goes on where the leftover says it is (latent: phase, offset), or begins at rest."""
        phase, offset = 0.0, request.obs
        if request.leftover is not None:
            phase, offset = request.leftover.latent[0, 0] - 1, request.leftover.latent[0, 1:]
        steps = phase + 1 + np.arange(HORIZON)
        latent = np.column_stack([steps, np.tile(offset, (HORIZON, 1))]).astype(np.float32)
        actions = (offset + self._curve(steps)).astype(np.float32)
        return ActionChunk(request.epoch, request.seq, request.base_tick, 0, actions, latent, DT_NS)
