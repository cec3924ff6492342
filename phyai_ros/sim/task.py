"""The task: how an episode begins, what counts as success, and a stepped simulation of it.

`EpisodeJudge` only sees points and a contact flag once per control tick, so the stepped simulation here and a real-time
simulator share it. Row convention: a row given at tick k is reached at the end of tick k; inside the tick the command
moves linearly from the previous row to this one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import CameraSpec, Feature, FloatArray, Observation
from phyai_ros.sim.arm import POLICY_JOINTS, STEPS_PER_TICK
from phyai_ros.sim.expert import joints_for
from phyai_ros.sim.scene import Scene, Snapshot

ACTION_HORIZON = 32  # H
SUCCESS_DISTANCE_M = 0.02
SUCCESS_TICKS = 15
TIME_LIMIT_TICKS = 110
START_POINT = 0.14 + 0.0j
START_SPREAD_M = 0.01
PUCK_START_M = (0.02, 0.17)

CAMERA = CameraSpec(key="front", height=64, width=64)
ACTION = tuple(Feature(name) for name in POLICY_JOINTS)
STATE = (
    *(Feature(name, "position", "rad") for name in POLICY_JOINTS),
    *(Feature(name, "velocity", "rad/s") for name in POLICY_JOINTS),
    *(Feature(name, "command", "rad") for name in POLICY_JOINTS),
)


class Outcome(str, Enum):
    """How an episode stands."""

    RUNNING = "running"
    SUCCESS = "success"
    CONTACT = "contact"
    TIMEOUT = "timeout"


class EpisodeJudge:
    """Decides an episode. `update` once per control tick; the outcome is final once it is not RUNNING."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a new episode."""
        self.ticks = 0
        self.ticks_on_puck = 0
        self.outcome = Outcome.RUNNING

    def update(self, tool_xy: NDArray[np.floating], puck_xy: NDArray[np.floating], contact: bool) -> Outcome:
        """Count one tick with the tool at `tool_xy` and the puck at `puck_xy`, both [2] in metres."""
        if self.outcome is not Outcome.RUNNING:
            return self.outcome
        self.ticks += 1
        distance_m = float(np.hypot(*(np.asarray(tool_xy) - np.asarray(puck_xy))))
        self.ticks_on_puck = self.ticks_on_puck + 1 if distance_m < SUCCESS_DISTANCE_M else 0
        if contact:
            self.outcome = Outcome.CONTACT
        elif self.ticks_on_puck >= SUCCESS_TICKS:
            self.outcome = Outcome.SUCCESS
        elif self.ticks >= TIME_LIMIT_TICKS:
            self.outcome = Outcome.TIMEOUT
        return self.outcome


@dataclass(frozen=True)
class Start:
    """Initial conditions of an episode."""

    joints: FloatArray  # [5] rad
    puck_y_m: float


def draw_start(rng: np.random.Generator) -> Start:
    """The start of a test episode: tool near START_POINT, puck on its way."""
    spread = complex(*rng.uniform(-START_SPREAD_M, START_SPREAD_M, 2))
    return start_at(START_POINT + spread, rng.uniform(*PUCK_START_M))


def start_at(tool: complex, puck_y_m: float) -> Start:
    """An episode's start with the tool at the point `tool` on the table."""
    return Start(joints=np.append(joints_for(tool), np.float32(0.0)), puck_y_m=float(puck_y_m))


@dataclass(frozen=True)
class SensorAge:
    """How old a sensor reading may be at the tick that uses it, in physics steps of 4 ms: drawn from 0 to these."""

    image_steps: int = 0
    joint_steps: int = 0


NO_AGE = SensorAge()
# A 25 Hz camera that runs freely beside the tick is 0 to 40 ms old, 100 Hz joint states 0 to 10 ms.
REAL_TIME_AGE = SensorAge(image_steps=STEPS_PER_TICK, joint_steps=2)


class StepSim:
    """The task under a logical clock: `observe`, then `step` with one row, then `observe`, and so on."""

    def __init__(self, scene: Scene, sensor_age: SensorAge = NO_AGE) -> None:
        self.scene = scene
        self.judge = EpisodeJudge()
        self._age = sensor_age
        self._past: deque[Snapshot] = deque(maxlen=STEPS_PER_TICK + 1)
        self.reset(start_at(START_POINT, PUCK_START_M[0]), seed=0)

    def reset(self, start: Start, seed: int) -> None:
        """Begin an episode; `seed` fixes the sensor ages that are drawn in it."""
        self._rng = np.random.default_rng(seed)
        self.scene.reset(start.joints, start.puck_y_m)
        self.judge.reset()
        self.last_command: FloatArray = start.joints[: len(POLICY_JOINTS)].copy()  # [A]
        self._past.clear()
        self._past.append(self.scene.snapshot())

    def step(self, row: FloatArray) -> Outcome:
        """Run one control tick that ends at the command `row` [A] in rad."""
        row = np.asarray(row, np.float32)
        for i in range(1, STEPS_PER_TICK + 1):
            target = self.last_command + (row - self.last_command) * (i / STEPS_PER_TICK)
            self.scene.set_command(np.append(target, 0.0))
            self.scene.step()
            self._past.append(self.scene.snapshot())
        self.last_command = row
        now = self._past[-1]
        return self.judge.update(now.tool_xy, now.puck_xy, self.scene.contact)

    @property
    def puck_y_m(self) -> float:
        """Where the puck is now."""
        return float(self._past[-1].puck_xy[1])

    def observe(self) -> Observation:
        """What the policy sees at this tick; renders one picture."""
        pictured = self._recall(self._age.image_steps)
        felt = self._recall(self._age.joint_steps)
        joints = slice(len(POLICY_JOINTS))
        state = np.concatenate([felt.positions[joints], felt.velocities[joints], self.last_command]).astype(np.float32)
        image = self.scene.picture(pictured, CAMERA.height, CAMERA.width, CAMERA.key)
        oldest_s = min(pictured.time_s, felt.time_s)
        return Observation(round(oldest_s * 1e9), {CAMERA.key: image}, state, self.last_command)

    def _recall(self, oldest_steps: int) -> Snapshot:
        steps = int(self._rng.integers(0, oldest_steps + 1))
        return self._past[max(-1 - steps, -len(self._past))]
