"""The contract of a controller output: it turns one Command per tick into messages for one ros2_control controller.

An output owns the reference: the position and velocity that the controller has been told to be at. Policy order [A] is
used everywhere; only what is published is put into the controller's order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import Command, Fault

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """Where the controller has been told to be: position [A] and velocity [A] per second."""

    position: Array
    velocity: Array


@dataclass(frozen=True)
class OutputConfig:
    """What every output needs to know. Raises ValueError naming the parameter that is wrong.

    `joint_names` are the robot's names in policy order; `controller_joints` the same set in the controller's order
    (empty: the same order). `max_acceleration`, one value or one per joint, limits braking. `rate_hz` 0: policy rate.
    """

    joint_names: tuple[str, ...]
    dt_s: float
    max_acceleration: tuple[float, ...]
    controller_joints: tuple[str, ...] = ()
    rate_hz: float = 0.0
    profile: str = "splice"

    def __post_init__(self) -> None:
        limits = np.asarray(self.max_acceleration, dtype=float)
        if limits.shape not in ((1,), (len(self.joint_names),)) or not np.all(np.isfinite(limits) & (limits > 0)):
            raise ValueError(
                f"limits.max_acceleration: {list(self.max_acceleration)} must hold one positive number for all joints,"
                f" or one for each of {', '.join(self.joint_names)}."
            )
        if self.controller_joints and sorted(self.controller_joints) != sorted(self.joint_names):
            raise ValueError(
                f"output.controller_joints: {', '.join(self.controller_joints)} must be exactly the joints of the"
                f" policy ({', '.join(self.joint_names)}), in the controller's order; correct the list or empty it."
            )

    @property
    def published_names(self) -> tuple[str, ...]:
        """Joint names in the controller's order."""
        return self.controller_joints or self.joint_names

    @property
    def order(self) -> NDArray[np.intp]:
        """[A] policy column of each published column."""
        return np.array([self.joint_names.index(name) for name in self.published_names], dtype=np.intp)


class Output(ABC):
    """One controller. `publish` takes a ROS message of `message_type`; calls come from the control thread only."""

    name: ClassVar[str]
    self_advancing: ClassVar[bool]  # the controller goes on through ticks that we miss
    message_type: ClassVar[type]
    default_topic: ClassVar[str]
    sub_ticks: int = 1  # publications wanted per tick: 1 by `update`, the others by `interpolate`

    def __init__(self, config: OutputConfig, publish: Callable[[Any], None]) -> None:
        self.config = config
        self._publish = publish
        limits = np.asarray(config.max_acceleration, dtype=float)
        self._max_acceleration = np.broadcast_to(limits, len(config.joint_names))  # [A]

    @abstractmethod
    def start(self, position: Array, stamp_ns: int) -> None:
        """Seed the reference with the robot at rest at `position` [A]; publishes nothing. ValueError if not finite."""

    @abstractmethod
    def update(self, command: Command, stamp_ns: int) -> Fault | None:
        """Do what the command of this tick asks; `stamp_ns` is the tick's deadline in ROS time.

        RUN executes rows. HOLD comes to rest inside the limits and keeps the reference. STOP and NONE come to rest and
        fall silent. A Fault says that the rows could not be published; nothing unfit ever is.
        """

    def interpolate(self, fraction: float, stamp_ns: int) -> None:
        """Publish the sub-tick that begins `fraction` (0..1) of a period after the tick. Default: nothing."""
        return

    @abstractmethod
    def reference_at(self, tick: int) -> Reference:
        """The reference at the instant of `tick`, the coming one or an earlier one since the last publication."""

    @property
    @abstractmethod
    def at_rest(self) -> bool:
        """Whether the reference of the last tick does not move any more."""

    def close(self) -> None:
        """Called once after the last update. Default: nothing to free."""
        return


def check_position(position: Array, joints: int) -> Array:
    """A copy of `position` as float64 [A]. Raises ValueError when its length or a number is wrong."""
    copied = np.array(position, dtype=np.float64)
    if copied.shape != (joints,) or not np.all(np.isfinite(copied)):
        raise ValueError(f"start position {copied.tolist()}: {joints} finite numbers are needed.")
    return copied
