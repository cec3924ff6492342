"""The contract of a controller output: it turns one Command per tick into messages for one ros2_control controller.

An output owns the reference: the position and velocity that the controller has been told to be at. Policy order [A] is
used everywhere; only what is published is put into the controller's order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from phyai_core.braking import Brake
from phyai_core.types import Command, Fault
from phyai_ros.outputs.channels import Channel, TopicChannel, load_interface, shadow_topic

if TYPE_CHECKING:
    from rclpy.node import Node

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
    max_jerk: tuple[float, ...] = ()  # of the braking stop; empty: constant deceleration
    controller_joints: tuple[str, ...] = ()
    rate_hz: float = 0.0
    profile: str = "splice"
    stamp_lead_s: float = 0.01  # a trajectory starts this much after its tick: the time its message may take
    frame: str = ""  # frame_id of stamped commands
    max_effort: float = 0.0  # of a gripper; 0: the controller's own

    def __post_init__(self) -> None:
        limits = np.asarray(self.max_acceleration, dtype=float)
        if limits.shape not in ((1,), (len(self.joint_names),)) or not np.all(np.isfinite(limits) & (limits > 0)):
            raise ValueError(
                f"limits.max_acceleration: {list(self.max_acceleration)} must hold one positive number for all joints,"
                f" or one for each of {', '.join(self.joint_names)}."
            )
        if self.controller_joints and sorted(self.controller_joints) != sorted(self.joint_names):
            raise ValueError(
                f"output.joints: {', '.join(self.controller_joints)} must be exactly the joints of the"
                f" policy ({', '.join(self.joint_names)}), in the controller's order; correct the list or empty it."
            )

    @property
    def published_names(self) -> tuple[str, ...]:
        """Joint names in the controller's order."""
        return self.controller_joints or self.joint_names

    def brake(self, dt_s: float) -> Brake:
        """Braking inside the limits, in rows of `dt_s`."""
        joints = len(self.joint_names)
        jerk = np.broadcast_to(np.asarray(self.max_jerk, float), joints) if self.max_jerk else None
        return Brake(np.broadcast_to(np.asarray(self.max_acceleration, float), joints), dt_s, jerk)

    @property
    def order(self) -> NDArray[np.intp]:
        """[A] policy column of each published column."""
        return np.array([self.joint_names.index(name) for name in self.published_names], dtype=np.intp)


class Output(ABC):
    """One controller. `publish` takes a message of `load_type()`; calls come from the control thread only."""

    name: ClassVar[str]
    interface: ClassVar[str]  # package.kind:Name of the message or action
    self_advancing: ClassVar[bool]  # the controller goes on through ticks that we miss
    any_clock: ClassVar[bool] = False  # may stand beside outputs of either kind
    default_topic: ClassVar[str]
    columns: ClassVar[tuple[int, ...]] = ()  # how many actions it takes; empty: any number
    moves_joints: ClassVar[bool] = True  # its actions are positions of joints that joint_states names
    sub_ticks: int = 1  # publications wanted per tick: 1 by `update`, the others by `interpolate`

    def __init__(self, config: OutputConfig, publish: Callable[[Any], None], channel: Channel | None = None) -> None:
        self.config = config
        self._publish, self.channel = publish, channel
        limits = np.asarray(config.max_acceleration, dtype=float)
        self._max_acceleration = np.broadcast_to(limits, len(config.joint_names))  # [A]

    def reconfigure(self, **changes: Any) -> None:
        """Change the configuration while nothing moves, to what a live controller asks for. Raises as OutputConfig."""
        self.config = replace(self.config, **changes)

    @classmethod
    def load_type(cls) -> type:
        """The message or action type. Raises ValueError where its package is not installed."""
        return load_interface(cls.interface, f"output.type: {cls.name}")

    @classmethod
    def open_channel(cls, node: Node, topic: str) -> Channel:
        """Where this output's messages go. Default: the topic."""
        return TopicChannel(node, cls.load_type(), topic)

    @classmethod
    def open_shadow(cls, node: Node, topic: str) -> Channel:
        """Where they go in shadow mode: the same messages on a topic of our own."""
        return TopicChannel(node, cls.load_type(), shadow_topic(topic))

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

    def take_fault(self) -> Fault | None:
        """What the controller complained of since the last call."""
        return self.channel.take_fault() if self.channel else None

    def close(self) -> None:
        """Called once after the last update."""
        if self.channel:
            self.channel.close()


def check_position(position: Array, joints: int) -> Array:
    """A copy of `position` as float64 [A]. Raises ValueError when its length or a number is wrong."""
    copied = np.array(position, dtype=np.float64)
    if copied.shape != (joints,) or not np.all(np.isfinite(copied)):
        raise ValueError(f"start position {copied.tolist()}: {joints} finite numbers are needed.")
    return copied
