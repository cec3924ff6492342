"""Policy units and robot units of the action joints: robot = scale * policy + offset, per joint.

A negative scale is a mirrored joint, a gripper that counts from open to closed, or both. Chunks leave the inference in
robot units and the leftover of the running chunk goes back in policy units, so everything between works on the robot's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import ActionChunk, InferenceRequest, Leftover, PolicySpec
from phyai_ros.settings import Joints


@dataclass(frozen=True)
class JointUnits:
    """`scale`, `offset` [A], in action order."""

    scale: NDArray[np.float32]
    offset: NDArray[np.float32]

    @classmethod
    def from_settings(cls, joints: Joints, spec: PolicySpec) -> JointUnits:
        """One value for all joints, one each, or none; the counts have been checked."""
        ones = np.ones(spec.action_dim, np.float32)
        return cls(ones * np.float32(joints.scale or 1.0), ones * np.float32(joints.offset or 0.0))

    @property
    def trivial(self) -> bool:
        """Policy and robot count alike."""
        return bool((self.scale == 1.0).all() and (self.offset == 0.0).all())

    def to_robot(self, rows: NDArray) -> NDArray:
        """[..., A] policy units -> robot units."""
        return (rows * self.scale + self.offset).astype(rows.dtype)

    def to_policy(self, rows: NDArray) -> NDArray:
        """[..., A] robot units -> policy units."""
        return ((rows - self.offset) / self.scale).astype(rows.dtype)


class ConvertedInference:
    """An inference whose chunks are in robot units, around one that knows policy units only."""

    def __init__(self, infer: Callable[[InferenceRequest], ActionChunk], units: JointUnits) -> None:
        self._infer, self._units = infer, units

    def __call__(self, request: InferenceRequest) -> ActionChunk:
        chunk = self._infer(replace(request, leftover=self._convert(request.leftover)))
        return replace(chunk, actions=self._units.to_robot(chunk.actions))

    def _convert(self, leftover: Leftover | None) -> Leftover | None:
        if leftover is None:
            return None
        return replace(leftover, actions=self._units.to_policy(leftover.actions))
