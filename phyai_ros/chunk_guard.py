"""Refuses finite chunks that the robot must not execute: beyond its limits, or starting far from where it stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import ActionChunk, Fault, InferenceRequest, Reason
from phyai_ros.settings import Limits, Start


class ChunkGuard:
    """The guard of an executor. `limits` hold one value per joint [A] in action order; empty bounds are not checked."""

    def __init__(self, joint_names: tuple[str, ...], dt_s: float, limits: Limits, start: Start) -> None:
        self._names, self._dt_s, self._max_step = joint_names, dt_s, start.max_step_rad
        joints = len(joint_names)
        self._lower = np.array(limits.position_lower or (-np.inf,) * joints)  # [A]
        self._upper = np.array(limits.position_upper or (np.inf,) * joints)
        self._max_velocity = np.array(limits.max_velocity)

    def __call__(self, chunk: ActionChunk, request: InferenceRequest) -> Fault | None:
        """The first of: position beyond a bound, velocity beyond its limit, a first chunk that starts far away."""
        return self._check_positions(chunk) or self._check_velocities(chunk) or self._check_start(chunk, request)

    def _check_positions(self, chunk: ActionChunk) -> Fault | None:
        for excess, bound in ((self._lower - chunk.actions, "lower"), (chunk.actions - self._upper, "upper")):
            row, joint = _find_largest(excess)
            if excess[row, joint] > 0:
                position = f"{self._names[joint]}: {chunk.actions[row, joint]:.3f} in row {row}"
                return Fault(Reason.BAD_CHUNK, f"{position} is beyond limits.position_{bound}")
        return None

    def _check_velocities(self, chunk: ActionChunk) -> Fault | None:
        velocities = np.abs(np.diff(chunk.actions, axis=0)) / self._dt_s  # [H - 1, A]
        if not len(velocities):
            return None
        row, joint = _find_largest(velocities - self._max_velocity)
        if velocities[row, joint] <= self._max_velocity[joint]:
            return None
        speed = f"{self._names[joint]}: {velocities[row, joint]:.2f} per second after row {row}"
        return Fault(Reason.BAD_CHUNK, f"{speed} is beyond limits.max_velocity ({self._max_velocity[joint]:g})")

    def _check_start(self, chunk: ActionChunk, request: InferenceRequest) -> Fault | None:
        """Later chunks start from the running one, so only the first of an epoch can be far from the robot."""
        if request.leftover is not None:
            return None
        distances = np.abs(chunk.actions[0] - request.obs.measured)
        joint = int(distances.argmax())
        if distances[joint] <= self._max_step:
            return None
        return Fault(
            Reason.START_TOO_FAR,
            f"{self._names[joint]}: the first action is {distances[joint]:.3f} from the measured position,"
            f" allowed is {self._max_step:g} (start.max_step_rad)",
        )


def _find_largest(values: NDArray[np.floating]) -> tuple[int, int]:
    row, joint = np.unravel_index(int(values.argmax()), values.shape)
    return int(row), int(joint)
