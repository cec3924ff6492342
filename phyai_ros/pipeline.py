"""One control period, end to end: sample inputs, tick the executor, drive the output, publish what happened.

Everything here runs in the control thread, except what is marked as for other threads, and the reading of `record`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from phyai_core.executor import RtcExecutor
from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import ChunkTiming
from phyai_core.types import Action, Command, Fault, FloatArray, Reason
from phyai_ros.mailbox import Mailbox
from phyai_ros.motion_guard import MotionGuard
from phyai_ros.pipeline_commands import HANDING_OVER, PipelineCommands
from phyai_ros.sample import Sample
from phyai_ros.supervision import Rules, Supervision
from phyai_ros.tick_trace import TickTrace, TracedTick

if TYPE_CHECKING:
    from phyai_ros.outputs.base import Output
    from phyai_ros.outputs.channels import ShadowChannel


@dataclass(frozen=True)
class TickRecord:
    """What the last tick saw and did, for status and diagnostics."""

    command: Command
    sample: Sample
    resting: bool  # the reference does not move
    silent: bool = False  # nothing is sent, not even a braking command


class Pipeline(PipelineCommands):
    """`on_command(command, stamp_ns)` hears every row, `on_chunk(command, timing, stamp_ns)` every adoption."""

    def __init__(
        self,
        executor: RtcExecutor,
        inputs: Mailbox,
        output: Output,
        timekeeper: Timekeeper,
        ros_now_ns: Callable[[], int],
        on_command: Callable[[Command, int], None],
        on_chunk: Callable[[Command, ChunkTiming, int], None],
        require_enable: bool = False,
        steady_now_ns: Callable[[], int] = time.monotonic_ns,
        motion: MotionGuard | None = None,
        rules: Rules | None = None,
        seed_position: Callable[[FloatArray], FloatArray] = lambda measured: measured,
        shadow: Sequence[ShadowChannel] = (),
    ) -> None:
        """`seed_position` gives where the output starts, from the measured pose [A]. `shadow`: channels to switch."""
        self._executor, self._inputs, self._output = executor, inputs, output
        self._timekeeper, self._ros_now_ns, self._steady_now_ns = timekeeper, ros_now_ns, steady_now_ns
        self._on_command, self._on_chunk = on_command, on_chunk
        self.motion = motion
        self.supervision = Supervision(rules or Rules(require_enable))
        self._seed_position, self._shadow = seed_position, tuple(shadow)
        self._live = self._wanted_live = not shadow
        self._closing = False
        self._seeded = False  # the output knows where the robot is
        self.rested = threading.Event()  # set once a closing pipeline has brought the robot to rest
        self.record: TickRecord | None = None
        self.trace = TickTrace()

    def begin(self) -> None:
        """Before the first tick of an activation: a new epoch, new counters, nothing taken over from the last one."""
        self._executor.restart(Reason.RESET, "the node was activated")
        self._timekeeper.begin()
        self.supervision.begin()
        if self.motion:
            self.motion.begin()
        self._closing = self._seeded = False
        self._set_live(not self._shadow)
        self._wanted_live = self._live
        self.rested.clear()
        self.record = None

    def tick(self, k: int, missed: int, stamp_ns: int, lateness_s: float) -> None:
        """`stamp_ns` is the deadline of tick k in ROS time, `lateness_s` how much later it runs."""
        self._timekeeper.note_tick(lateness_s)
        now_ns, newer_than_ns = self._ros_now_ns(), self._inputs.newer_than_ns
        standing = self._hand_over() or self.supervision.fault(now_ns)
        silent = self.supervision.is_silent(standing)
        if silent:
            self._seeded = False  # whoever moves the robot now: we start anew from where it is then
        sample = self._inputs.sample(now_ns, k, self._reference_at(k))
        if sample.obs is not None and self._at_rest and not silent:
            self._seed(sample, stamp_ns)
            sample = self._inputs.sample(now_ns, k, self._reference_at(k))  # the policy sees what it starts from
        fault = standing or sample.fault or self._check_motion(k, now_ns, sample)
        command = self._executor.tick(
            k,
            self._steady_now_ns(),
            sample.obs if self._seeded and not self._approaching else None,
            fault,
            missed if self._output.self_advancing else 0,
        )
        command = self._steer(command, may_move=fault is None)
        self._drive(command, stamp_ns, lateness_s)
        self._timekeeper.note_motion(command, stamp_ns, sample.obs)
        self.record = TickRecord(command, sample, self._output_rests, silent)
        self.trace.note(self._describe(stamp_ns, now_ns, newer_than_ns))
        if self._closing and self._output_rests:
            self.rested.set()

    def _describe(self, stamp_ns: int, now_ns: int, newer_than_ns: int) -> TracedTick:
        command, newest_ns = self.record.command, self.record.sample.newest_ns
        late_ns, launches = now_ns - stamp_ns, self._executor.launches
        return TracedTick(command.tick, stamp_ns, late_ns, command.reason.value, launches, newer_than_ns, newest_ns)

    def _reference_at(self, k: int) -> FloatArray | None:
        return self._output.reference_at(k).position.astype(np.float32) if self._seeded else None

    def _check_motion(self, k: int, now_ns: int, sample: Sample) -> Fault | None:
        """Whether the robot follows; what is seen wrong stays until someone resets it."""
        if self.motion is None:
            return None
        if not self._seeded:
            self.motion.forget()
            return None
        self.motion.remember(k, self._reference_at(k))
        if sample.obs is None:
            return None
        fault = self.motion.check_following(now_ns, sample.obs.measured, sample.obs.effort)
        if fault is None:
            return None
        if not self._live:
            self.motion.forget()  # in shadow mode the robot does something else: plan anew from where it is
            self._seeded = False
            return fault
        self.supervision.latch(fault)
        return fault

    def _steer(self, command: Command, may_move: bool) -> Command:
        """An approach takes the place of what the executor asks for; at its end the policy plans anew."""
        if self.motion is None or not self._seeded:
            return command
        position = self._output.reference_at(command.tick).position if self._output.at_rest else None
        steered = self.motion.steer(command, position, may_move)
        arrived = steered.reason is Reason.APPROACH and steered.action is Action.RUN and not self.motion.on_the_way
        if arrived:
            self._start_over(Reason.RESET, "at the first action: planning anew from here")
        return steered

    def _hand_over(self) -> Fault | None:
        """Between shadow and the real controllers: out of shadow from the robot's pose, back only at rest."""
        if self._wanted_live == self._live:
            return None
        if not self._wanted_live and not self._output_rests:
            return HANDING_OVER
        self._set_live(self._wanted_live)
        self._seeded = False
        return None

    def _set_live(self, live: bool) -> None:
        self._live = live
        for channel in self._shadow:
            channel.live = live

    def sub_tick(self, fraction: float, stamp_ns: int) -> None:
        if self._seeded:
            self._output.interpolate(fraction, stamp_ns)
        self.trace.note_sub_tick()

    def _drive(self, command: Command, stamp_ns: int, lateness_s: float) -> None:
        if not self._seeded:
            return
        fault = self._output.update(command, stamp_ns)
        if fault is not None:
            self._executor.reset(fault.reason, fault.text)
            return
        complaint = self._output.take_fault()
        if complaint is not None:
            self.supervision.latch(complaint)  # a controller that refuses once would refuse again
        if command.action is not Action.RUN:
            return
        published_ns = self._steady_now_ns()
        self._on_command(command, stamp_ns)
        if command.adopted:
            counters = self._executor.counters
            self._on_chunk(
                command, self._timekeeper.close(command, counters, published_ns, stamp_ns, lateness_s), stamp_ns
            )

    def _seed(self, sample: Sample, stamp_ns: int) -> None:
        """While nothing is commanded, the reference follows the measured pose: others may move the robot meanwhile."""
        self._output.start(self._seed_position(sample.obs.measured), stamp_ns)
        self._seeded = True

    @property
    def _at_rest(self) -> bool:
        """Nothing runs, nothing is held: the executor waits and the output has come to rest."""
        idle = self.record is None or self.record.command.action in (Action.STOP, Action.NONE)
        return idle and self._output_rests

    @property
    def _output_rests(self) -> bool:
        return not self._seeded or self._output.at_rest

    @property
    def _approaching(self) -> bool:
        return self.motion is not None and self.motion.on_the_way

    @property
    def chunks(self) -> int:
        """Chunks adopted since activation."""
        return self._executor.counters.chunks

    @property
    def live(self) -> bool:
        """Commands reach the robot: not in shadow mode, or taken over."""
        return self._live
