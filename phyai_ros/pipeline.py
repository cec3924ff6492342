"""One control period, end to end: sample inputs, tick the executor, drive the output, publish what happened.

Everything here runs in the control thread, except `enable`, `reset`, `close` and the reading of `record`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from phyai_core.executor import RtcExecutor
from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import ChunkTiming
from phyai_core.types import Action, Command, Fault, Reason
from phyai_ros.mailbox import Mailbox, Sample

if TYPE_CHECKING:
    from phyai_ros.outputs.base import Output

DISABLED = Fault(Reason.DISABLED, "waiting for ~/enable to be true")
CLOSING = Fault(Reason.INACTIVE, "the node is being deactivated")


@dataclass(frozen=True)
class TickRecord:
    """What the last tick saw and did, for status and diagnostics."""

    command: Command
    sample: Sample
    resting: bool  # the reference does not move


class Pipeline:
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
    ) -> None:
        self._executor, self._inputs, self._output = executor, inputs, output
        self._timekeeper, self._ros_now_ns, self._steady_now_ns = timekeeper, ros_now_ns, steady_now_ns
        self._on_command, self._on_chunk = on_command, on_chunk
        self._require_enable = require_enable
        self._enabled = not require_enable
        self._closing = False
        self._seeded = False  # the output knows where the robot is
        self.rested = threading.Event()  # set once a closing pipeline has brought the robot to rest
        self.record: TickRecord | None = None

    def begin(self) -> None:
        """Before the first tick of an activation: a new epoch, new counters, nothing taken over from the last one."""
        self._executor.restart(Reason.RESET, "the node was activated")
        self._timekeeper.begin()
        self._enabled = not self._require_enable
        self._closing = self._seeded = False
        self.rested.clear()
        self.record = None

    def tick(self, k: int, missed: int, stamp_ns: int, lateness_s: float) -> None:
        """`stamp_ns` is the deadline of tick k in ROS time, `lateness_s` how much later it runs."""
        self._timekeeper.note_tick(lateness_s)
        reference = self._output.reference_at(k).position.astype(np.float32) if self._seeded else None
        sample = self._inputs.sample(self._ros_now_ns(), k, reference)
        if sample.obs is not None and self._at_rest:
            self._seed(sample, stamp_ns)
        fault = self._standing_fault() or sample.fault
        counted = missed if self._output.self_advancing else 0
        command = self._executor.tick(k, self._steady_now_ns(), sample.obs if self._seeded else None, fault, counted)
        self._drive(command, stamp_ns, lateness_s)
        self._timekeeper.note_motion(command, stamp_ns, sample.obs)
        self.record = TickRecord(command, sample, self._output_rests)
        if self._closing and self._output_rests:
            self.rested.set()

    def sub_tick(self, fraction: float, stamp_ns: int) -> None:
        if self._seeded:
            self._output.interpolate(fraction, stamp_ns)

    def _drive(self, command: Command, stamp_ns: int, lateness_s: float) -> None:
        if not self._seeded:
            return
        fault = self._output.update(command, stamp_ns) or self._output.take_fault()
        if fault is not None:
            self._executor.reset(fault.reason, fault.text)
            return
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
        self._output.start(sample.obs.measured, stamp_ns)
        self._seeded = True

    @property
    def _at_rest(self) -> bool:
        """Nothing runs, nothing is held: the executor waits and the output has come to rest."""
        idle = self.record is None or self.record.command.action in (Action.STOP, Action.NONE)
        return idle and self._output_rests

    @property
    def _output_rests(self) -> bool:
        return not self._seeded or self._output.at_rest

    def _standing_fault(self) -> Fault | None:
        if self._closing:
            return CLOSING
        return None if self._enabled else DISABLED

    # --- other threads -----------------------------------------------------------------------------------------------

    def enable(self, enabled: bool) -> None:
        """The deadman: False brakes and drops the epoch, True starts over from observations made after this call."""
        if not self._require_enable or enabled == self._enabled:
            return
        self.reset(Reason.DISABLED if not enabled else Reason.RESET, "~/enable went " + str(enabled).lower())
        self._enabled = enabled

    def reset(self, reason: Reason, text: str) -> None:
        """New epoch: brake, and wait for observations newer than now."""
        self._inputs.require_newer_than(self._ros_now_ns())
        self._executor.reset(reason, text)

    def fail_tick(self, error: Exception) -> None:
        """A tick raised. That is a defect; the next tick brakes."""
        self._executor.reset(Reason.INTERNAL, f"control tick raised {type(error).__name__}: {error}")

    def close(self) -> None:
        """Brake; `rested` is set when the reference has come to rest."""
        self._closing = True
        self._executor.reset(CLOSING.reason, CLOSING.text)
