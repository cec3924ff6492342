"""Output to a joint_trajectory_controller: one trajectory per chunk, each ending in a braking tail.

The controller executes the trajectory by itself, also when this process stalls or dies; the tail is what stops the
robot then. Nothing is repeated while a trajectory runs its course, the tail included.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from builtin_interfaces.msg import Duration, Time
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from phyai_core.clock import NS_PER_S
from phyai_core.types import Action, Command, Fault, Reason
from phyai_ros.outputs.base import Array, Output, OutputConfig, Reference, check_position
from phyai_ros.outputs.channels import Channel
from phyai_ros.outputs.track import (
    Track,
    TrajectoryPlan,
    brake_along,
    brake_track,
    chunk_track,
    replace_plan,
    rest_track,
    splice_plan,
)

PROFILES = ("auto", "splice", "replace")  # auto: settled by `adapt` on activation; until then as splice


class JointTrajectoryOutput(Output):
    """Profile `splice` publishes what is to come, `replace` also what was executed since the launch."""

    name = "joint_trajectory"
    interface = "trajectory_msgs.msg:JointTrajectory"
    self_advancing = True
    default_topic = "joint_trajectory_controller/joint_trajectory"

    def __init__(self, config: OutputConfig, publish: Callable[[Any], None], channel: Channel | None = None) -> None:
        super().__init__(config, publish, channel)
        if config.profile not in PROFILES:
            raise ValueError(
                f"output.profile: {config.profile!r} is not a profile; choose one of {', '.join(PROFILES)}."
            )
        self._brake = config.brake(config.dt_s)
        self._dt_ns = round(config.dt_s * NS_PER_S)
        self._lead_ns = min(round(config.stamp_lead_s * NS_PER_S), self._dt_ns // 2)
        self._track: Track | None = None
        self._chunk: tuple[int, int] | None = None  # epoch and seq of the chunk on the track
        self._first_row = 0  # row of that chunk which the track's first knot after knot 0 is
        self._tick = 0

    def start(self, position: Array, stamp_ns: int) -> None:
        self._track = rest_track(check_position(position, len(self.config.joint_names)))
        self._chunk = None

    def update(self, command: Command, stamp_ns: int) -> Fault | None:
        self._tick = command.tick
        if command.action is not Action.RUN:
            self._stop(stamp_ns)
            return None
        if self._follows(command):
            return None
        return self._run(command, stamp_ns)

    def reference_at(self, tick: int) -> Reference:
        return self._track.at(tick)

    @property
    def at_rest(self) -> bool:
        return self._tick >= self._track.rest_tick

    @property
    def rest_tick(self) -> int:
        """The tick at whose instant the robot has stopped if nothing else is published."""
        return self._track.rest_tick

    def _follows(self, command: Command) -> bool:
        """Whether the controller is about to execute this very row already."""
        chunk, running = command.chunk, self._track.rows_left(command.tick) > 0
        row = self._first_row + command.tick - self._track.start_tick
        return running and self._chunk == (chunk.epoch, chunk.seq) and row == command.index

    def _run(self, command: Command, stamp_ns: int) -> Fault | None:
        rows = command.chunk.actions[command.index :].astype(float)
        try:
            track = chunk_track(command.tick, self.reference_at(command.tick), rows, self._brake)
        except ValueError as error:
            return Fault(Reason.BAD_CHUNK, f"the chunk cannot become a trajectory: {error}")
        self._chunk, self._first_row = (command.chunk.epoch, command.chunk.seq), command.index
        self._take_over(track, max(1, command.index), stamp_ns)
        return None

    def _stop(self, stamp_ns: int) -> None:
        """Once, when rows were to come: a track without rows left is braking by itself, or at rest."""
        if self._track.rows_left(self._tick) == 0:
            return
        if self._brake.max_jerk is None:
            lead = 0.0 if self.config.profile == "replace" else self._lead_ns / self._dt_ns
            track = brake_along(self._track, self._tick, self._brake, lead)
        else:
            track = brake_track(self._tick, self.reference_at(self._tick), self._brake)
        self._take_over(track, 1, stamp_ns)

    def _take_over(self, track: Track, past: int, stamp_ns: int) -> None:
        names, order = self.config.published_names, self.config.order
        if self.config.profile == "replace":
            plan = replace_plan(track, self._track, past, stamp_ns, self._dt_ns, names, order)
        else:
            plan = splice_plan(track, stamp_ns, self._dt_ns, self._lead_ns, names, order)
        self._track = track
        self._publish(self._wrap(to_message(plan)))

    def _wrap(self, message: JointTrajectory) -> Any:
        """The message as the channel takes it."""
        return message


def to_message(plan: TrajectoryPlan) -> JointTrajectory:
    """The plan as a ROS message."""
    message = JointTrajectory(joint_names=list(plan.names))
    message.header.stamp = Time(sec=plan.stamp_ns // NS_PER_S, nanosec=plan.stamp_ns % NS_PER_S)
    message.points = [
        JointTrajectoryPoint(
            positions=array("d", position),
            velocities=array("d", velocity),
            time_from_start=Duration(sec=time_ns // NS_PER_S, nanosec=time_ns % NS_PER_S),
        )
        for position, velocity, time_ns in zip(plan.positions, plan.velocities, plan.times_ns, strict=True)
    ]
    return message
