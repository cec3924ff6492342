"""The simulated robot in real time: arm, controller and sensors on the steps of a clock. No ROS in here.

`RobotWorld.run_steps` is called by a loop of 4 ms; commands come from another thread. Only physics and controller are
inside the lock: pictures are drawn elsewhere, from snapshots.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phyai_ros.sim.arm import JOINTS, PHYSICS_DT_S, POLICY_JOINTS, STEPS_PER_TICK
from phyai_ros.sim.controllers import FAMILIES, ForwardCommandController, JointTrajectoryController, Trajectory
from phyai_ros.sim.scene import Scene, Snapshot
from phyai_ros.sim.task import Start

PHYSICS_DT_NS = round(PHYSICS_DT_S * 1e9)
JOINT_STATE_NS = 10_000_000
MAX_CATCH_UP_STEPS = 50  # 0.2 s; what a slower machine leaves behind is given up and reported
CONTROLLERS = ("joint_trajectory_controller", "forward_position_controller")
POLICY_SLICE = slice(len(POLICY_JOINTS))

Sense = Callable[[Snapshot, int], None]


@dataclass(frozen=True)
class ControllerConfig:
    """Which controller is active, and how a joint_trajectory_controller behaves. ValueError names what is wrong."""

    controller: str = CONTROLLERS[0]
    jtc_family: str = FAMILIES[0]
    interpolate_from_desired_state: bool = True

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise ValueError(f"controller: {self.controller!r} does not exist; choose one of {', '.join(CONTROLLERS)}.")
        if self.jtc_family not in FAMILIES:
            raise ValueError(f"jtc_family: {self.jtc_family!r} does not exist; choose one of {', '.join(FAMILIES)}.")


class RobotWorld:
    """Scene and controller. `paused` freezes the world while the sensors go on.

    `on_joints(snapshot, stamp_ns)` is called at 100 Hz, `on_tick` at 25 Hz, in the thread that runs the steps.
    `on_reject(reason)` hears of the first rejected command of each kind; `rejections` counts them all.
    """

    def __init__(
        self, scene: Scene, config: ControllerConfig, on_joints: Sense, on_tick: Sense, on_reject: Callable[[str], None]
    ) -> None:
        self._scene, self._config = scene, config
        self._on_joints, self._on_tick, self._on_reject = on_joints, on_tick, on_reject
        self._lock = threading.Lock()
        self._trajectories = JointTrajectoryController(
            POLICY_JOINTS, config.jtc_family, config.interpolate_from_desired_state
        )
        self._commands = ForwardCommandController(POLICY_JOINTS)
        self._target = np.zeros(len(JOINTS))
        self._now = scene.snapshot()
        self._told: set[str] = set()
        self.paused = False
        self.rejections: Counter[str] = Counter()
        self._steps = self._lost_steps = 0

    def reset(self, start: Start) -> None:
        """Put arm and puck at the start of an episode; the controller forgets its trajectory and holds that pose."""
        with self._lock:
            self._scene.reset(start.joints, start.puck_y_m)
            self._now = self._scene.snapshot()
            self._hold(np.asarray(start.joints, dtype=float))
            self.rejections = Counter()
            self._steps = self._lost_steps = 0

    def hold(self) -> None:
        """The controller starts anew where it is, as after a jump of the clock its stamps refer to."""
        with self._lock:
            self._hold(self._target.copy())

    def follow(self, trajectory: Trajectory, now_ns: int) -> None:
        """A message for the joint_trajectory_controller, received at `now_ns`."""
        with self._lock:
            reason = self._inactive(CONTROLLERS[0]) or self._trajectories.accept(trajectory, now_ns)
        self._judge(reason)

    def command(self, data: NDArray[np.float64]) -> None:
        """A message for the forward_position_controller."""
        with self._lock:
            reason = self._inactive(CONTROLLERS[1]) or self._commands.accept(data)
        self._judge(reason)

    def reject(self, reason: str) -> None:
        """Count a message that could not even be read."""
        self._judge(reason)

    def run_steps(self, k: int, missed: int, stamp_ns: int) -> None:
        """Run step k, due at `stamp_ns`, and before it those of the `missed` ones that can be made up for."""
        self._lost_steps += max(0, missed - MAX_CATCH_UP_STEPS)
        for behind in range(min(missed, MAX_CATCH_UP_STEPS), -1, -1):
            self._run_step(k - behind, stamp_ns - behind * PHYSICS_DT_NS)

    @property
    def real_time_factor(self) -> float:
        """Simulated time over real time since the last reset; below 1 the machine is too slow."""
        return self._steps / max(1, self._steps + self._lost_steps) if self._lost_steps else 1.0

    @property
    def contact(self) -> bool:
        return self._scene.contact

    def _run_step(self, k: int, stamp_ns: int) -> None:
        with self._lock:
            self._steps += 1
            if not self.paused:
                self._actuate(stamp_ns - PHYSICS_DT_NS)
                self._scene.step()
            self._now = now = self._scene.snapshot()
        if k * PHYSICS_DT_NS // JOINT_STATE_NS != (k - 1) * PHYSICS_DT_NS // JOINT_STATE_NS:
            self._on_joints(now, stamp_ns)
        if k % STEPS_PER_TICK == 0:
            self._on_tick(now, stamp_ns)

    def _actuate(self, now_ns: int) -> None:
        command = self._update_controller(now_ns)
        if command is None:
            return
        if np.isfinite(command).all():
            self._target[POLICY_SLICE] = command
            self._scene.set_command(self._target)
        else:
            self.rejections["a command that is not finite reached the joints"] += 1

    def _update_controller(self, now_ns: int) -> NDArray[np.float64] | None:
        if self._config.controller == CONTROLLERS[1]:
            return self._commands.update()
        measured = self._now.positions[POLICY_SLICE], self._now.velocities[POLICY_SLICE]
        return self._trajectories.update(now_ns, PHYSICS_DT_NS, *measured)

    def _hold(self, joints: NDArray[np.float64]) -> None:
        self._target = joints
        self._trajectories.activate(joints[POLICY_SLICE])
        self._commands.activate(joints[POLICY_SLICE])

    def _inactive(self, controller: str) -> str | None:
        return None if controller == self._config.controller else f"{controller} is not active"

    def _judge(self, reason: str | None) -> None:
        if reason is None:
            return
        self.rejections[reason] += 1
        if reason not in self._told:
            self._told.add(reason)
            self._on_reject(reason)
