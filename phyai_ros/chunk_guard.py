"""Refuses finite chunks that the robot must not execute: beyond its limits, or starting far from where it stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phyai_core.limiter import JointLimits
from phyai_core.types import ActionChunk, Fault, InferenceRequest, Reason
from phyai_ros.settings import Start


class ChunkGuard:
    """The guard of an executor, for joints in action order.

    `refuses`: chunks beyond position or velocity limits are refused; otherwise a limiter sees to them. `measured` [A]
    says which actions joint_states can be compared with (all of them by default).
    """

    def __init__(
        self,
        limits: JointLimits,
        dt_s: float,
        start: Start,
        refuses: bool = True,
        measured: NDArray[np.bool_] | None = None,
    ) -> None:
        self.limits, self._dt_s, self._max_step, self._refuses = limits, dt_s, start.max_step_rad, refuses
        self._measured = np.ones(len(limits.names), bool) if measured is None else measured

    def __call__(self, chunk: ActionChunk, request: InferenceRequest) -> Fault | None:
        """The first of: position beyond a bound, velocity beyond its limit, a first chunk that starts far away."""
        beyond = (self._check_positions(chunk) or self._check_velocities(chunk)) if self._refuses else None
        return beyond or self._check_start(chunk, request)

    def _check_positions(self, chunk: ActionChunk) -> Fault | None:
        lower, upper = self.limits.lower, self.limits.upper
        for excess, bound in ((lower - chunk.actions, "lower"), (chunk.actions - upper, "upper")):
            row, joint = _find_largest(excess)
            if excess[row, joint] > 0:
                position = f"{self.limits.names[joint]}: {chunk.actions[row, joint]:.3f} in row {row}"
                return Fault(Reason.BAD_CHUNK, f"{position} is beyond limits.position_{bound}")
        return None

    def _check_velocities(self, chunk: ActionChunk) -> Fault | None:
        velocities = np.abs(np.diff(chunk.actions, axis=0)) / self._dt_s  # [H - 1, A]
        if not len(velocities):
            return None
        limit = self.limits.velocity
        row, joint = _find_largest(velocities - limit)
        if velocities[row, joint] <= limit[joint]:
            return None
        speed = f"{self.limits.names[joint]}: {velocities[row, joint]:.2f} per second after row {row}"
        return Fault(Reason.BAD_CHUNK, f"{speed} is beyond limits.max_velocity ({limit[joint]:g})")

    def _check_start(self, chunk: ActionChunk, request: InferenceRequest) -> Fault | None:
        """Later chunks start from the running one, so only the first of an epoch can be far from the robot.

        In sync mode every chunk is a first one, planned while the arm still lags behind its command: being near either
        of the two is near enough. At rest they are the same.
        """
        if request.leftover is not None:
            return None
        obs = request.obs
        near = np.minimum(np.abs(chunk.actions[0] - obs.measured), np.abs(chunk.actions[0] - obs.last_command))
        distances = np.where(self._measured, near, 0.0)
        joint = int(distances.argmax())
        if distances[joint] <= self._max_step:
            return None
        return Fault(
            Reason.START_TOO_FAR,
            f"{self.limits.names[joint]}: the first action is {distances[joint]:.3f} from the measured position,"
            f" allowed is {self._max_step:g} (start.max_step_rad)",
        )


def _find_largest(values: NDArray[np.floating]) -> tuple[int, int]:
    row, joint = np.unravel_index(int(values.argmax()), values.shape)
    return int(row), int(joint)
