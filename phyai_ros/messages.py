"""From core types to ROS messages. Field by field, nothing else."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict

from builtin_interfaces.msg import Time
from sensor_msgs.msg import JointState
from std_msgs.msg import Header

from phyai_core.clock import NS_PER_S
from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import ChunkTiming
from phyai_core.types import Command, FloatArray, PolicySpec
from phyai_ros.input_clocks import InputClocks
from phyai_ros.motion_guard import MotionGuard
from phyai_ros.msg import ActionChunk, ControlTiming, PolicyStatus, TickTrace
from phyai_ros.tick_trace import TracedTick


def to_time(stamp_ns: int) -> Time:
    """ROS time in nanoseconds -> message."""
    return Time(sec=stamp_ns // NS_PER_S, nanosec=stamp_ns % NS_PER_S)


def to_command_message(row: FloatArray, names: list[str], stamp_ns: int) -> JointState:
    """The row [A] of one tick as a standard message, for plots and bags."""
    return JointState(header=Header(stamp=to_time(stamp_ns)), name=names, position=array("d", row))


def to_chunk_message(command: Command, spec: PolicySpec, names: list[str], stamp_ns: int) -> ActionChunk:
    """The chunk that `command` adopted; `names` are the robot's, in action order."""
    chunk = command.chunk
    return ActionChunk(
        header=Header(stamp=to_time(stamp_ns)),
        epoch=chunk.epoch,
        seq=chunk.seq,
        base_tick=chunk.base_tick,
        adopt_tick=command.tick,
        entry_row=command.index,
        dt=spec.dt_s,
        names=names,
        units=[feature.unit for feature in spec.action],
        rows=chunk.actions.shape[0],
        columns=chunk.actions.shape[1],
        actions=array("f", chunk.actions.tobytes()),
        source_names=[source.name for source in chunk.sources],
        source_stamps=[to_time(source.stamp_ns) for source in chunk.sources],
        source_ticks=[source.arrival_tick for source in chunk.sources],
    )


def to_timing_message(timing: ChunkTiming, stamp_ns: int) -> ControlTiming:
    events = {name: to_time(at_ns) for name, at_ns in timing.stamps.items()}
    return ControlTiming(header=Header(stamp=to_time(stamp_ns)), **timing.flatten(), **events)


def to_trace_message(ticks: Sequence[TracedTick], now_ns: int) -> TickTrace:
    """What the loop did in some consecutive ticks."""
    topics = sorted({topic for tick in ticks for topic in tick.newest_ns})
    return TickTrace(
        header=Header(stamp=to_time(now_ns)),
        ticks=array("Q", [tick.tick for tick in ticks]),
        deadlines=[to_time(tick.deadline_ns) for tick in ticks],
        lateness=array("d", [tick.late_ns / NS_PER_S for tick in ticks]),
        sub_ticks=array("I", [tick.sub_ticks for tick in ticks]),
        reasons=[tick.reason for tick in ticks],
        launches=array("Q", [tick.launches for tick in ticks]),
        newer_than=[to_time(max(0, tick.newer_than_ns)) for tick in ticks],
        input_names=topics,
        input_stamps=[to_time(tick.newest_ns.get(topic, 0)) for tick in ticks for topic in topics],
    )


def add_control_time(status: PolicyStatus, timekeeper: Timekeeper) -> None:
    """What the last chunks say about control time, into a status message."""
    for name, value in asdict(timekeeper.recent.summarise()).items():
        setattr(status, name, value)
    lag = timekeeper.lag.latest
    status.actuation_lag = lag.seconds if lag.is_measured else math.nan
    status.actuation_confidence = lag.confidence


def add_clocks(status: PolicyStatus, clocks: InputClocks) -> None:
    """How the clock of each input stands to ours, in the order of `input_names`."""
    states = [clocks.state(name) for name in status.input_names]
    status.input_clock_offsets = [state.offset_s for state in states]
    status.input_clock_drifts = [state.drift for state in states]
    status.input_stamps_back = [state.steps_back for state in states]


def add_motion(status: PolicyStatus, names: list[str], motion: MotionGuard, live: bool) -> None:
    """What the limiter did, how well the robot follows, and whether commands reach it."""
    report, error = motion.report, motion.following_error
    status.joint_names, status.shadow = names, not live
    status.following_error = [math.nan] * len(names) if error is None else [float(value) for value in error]
    status.slowdown, status.limited, status.chunks_limited = report.slowdown, report.text, report.chunks
    status.limited_chunks = list(report.by_joint)
