"""What the node says about itself: ~/status, ~/chunk, ~/timing, ~/command, ~/ticks, /diagnostics, and logs of edges."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from sensor_msgs.msg import JointState
from std_msgs.msg import Header

from phyai_core.executor import RtcExecutor
from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import ChunkTiming, Ring
from phyai_core.types import Action, Command, PolicySpec, Reason
from phyai_ros.endpoints import create_publisher
from phyai_ros.inputs import Inputs
from phyai_ros.messages import (
    add_clocks,
    add_control_time,
    add_motion,
    to_chunk_message,
    to_command_message,
    to_time,
    to_timing_message,
    to_trace_message,
)
from phyai_ros.msg import ActionChunk, ControlTiming, PolicyStatus, TickTrace
from phyai_ros.outbox import Outbox
from phyai_ros.pipeline import Pipeline, TickRecord

if TYPE_CHECKING:
    from rclpy.node import Node

DIAGNOSTICS_PERIOD_S = 1.0
SHOWN_CONTROL_TIME = ("x_p50", "x_p99", "y_p50", "y_p99", "l_critical_p50", "l_critical_p99", "actuation_lag")
LOG_PERIOD_S = 10.0  # of remarks that may change with every chunk
WAITING = frozenset({Reason.FIRST_CHUNK, Reason.WAITING_INPUT, Reason.RESET, Reason.APPROACH})
LEVELS = {
    "running": DiagnosticStatus.OK,
    "disabled": DiagnosticStatus.OK,
    "inactive": DiagnosticStatus.OK,
    "waiting": DiagnosticStatus.WARN,
    "holding": DiagnosticStatus.WARN,
    "stopped": DiagnosticStatus.ERROR,
}


def name_state(record: TickRecord | None) -> str:
    """The state of an active node in one word."""
    if record is None:
        return "waiting"
    command = record.command
    if command.action is Action.RUN:
        return "running"
    if command.action is Action.HOLD:
        return "holding"
    if command.reason in (Reason.DISABLED, Reason.PAUSED):
        return "disabled" if record.resting else "stopped"
    return "waiting" if command.action is Action.NONE or command.reason in WAITING else "stopped"


class Reporter:
    """Publishers of one configuration. `report_*` are for the control thread: the row goes out at once, what is told
    of a chunk is built and sent by another thread. `publish_status` is a timer's."""

    def __init__(
        self,
        node: Node,
        spec: PolicySpec,
        executor: RtcExecutor,
        inputs: Inputs,
        joint_names: list[str],
        mode: str,
        timekeeper: Timekeeper,
    ) -> None:
        self._node, self._spec, self._executor = node, spec, executor
        self._names, self._mode, self._timekeeper = joint_names, mode, timekeeper
        self._status = create_publisher(node, PolicyStatus, "~/status")
        self._chunk = create_publisher(node, ActionChunk, "~/chunk")
        self._timing = create_publisher(node, ControlTiming, "~/timing")
        self._command = create_publisher(node, JointState, "~/command")
        self._ticks = create_publisher(node, TickTrace, "~/ticks")
        self._diagnostics = create_publisher(node, DiagnosticArray, "/diagnostics")
        self._logged: tuple[str, Reason] | None = None
        self._diagnosed_ns = 0
        self._degradation: str | None = None
        self.warnings: dict[str, str] = {}  # standing remarks, e.g. a real-time setting that was not permitted
        self._inputs = inputs
        self.pipeline: Pipeline | None = None  # set once it is made
        self.last_timing: ControlTiming | None = None
        self._outbox = Outbox(lambda error: node.get_logger().error(f"cannot report a chunk: {error}"))

    def set_warning(self, name: str, text: str) -> None:
        """A standing remark for the diagnostics; an empty text takes it back."""
        if text:
            self.warnings[name] = text
        else:
            self.warnings.pop(name, None)

    def report_command(self, command: Command, stamp_ns: int) -> None:
        self._command.publish(to_command_message(command.row, self._names, stamp_ns))

    def report_chunk(self, command: Command, timing: ChunkTiming, stamp_ns: int) -> None:
        self._outbox.put(partial(self._send_chunk, command, timing, stamp_ns))

    def _send_chunk(self, command: Command, timing: ChunkTiming, stamp_ns: int) -> None:
        self._chunk.publish(to_chunk_message(command, self._spec, self._names, stamp_ns))
        self.last_timing = to_timing_message(timing, stamp_ns)
        self._timing.publish(self.last_timing)

    def publish_status(self, record: TickRecord | None, tick_errors_s: Ring, prompt: str) -> PolicyStatus:
        """Status now, diagnostics once a second and at every change of state, a log line at every change of reason."""
        state = name_state(record)
        status = self._make_status(state, record, tick_errors_s, prompt)
        self._status.publish(status)
        self._publish_ticks()
        changed = self._log_change(status) | self._log_degradation()
        now_ns = self._node.get_clock().now().nanoseconds
        if changed or abs(now_ns - self._diagnosed_ns) >= DIAGNOSTICS_PERIOD_S * 1e9:
            self._diagnosed_ns = now_ns
            self._timekeeper.lag.update()
            self._diagnostics.publish(self._make_diagnostics(status))
        return status

    def publish_end(self, text: str) -> None:
        """The last word before silence."""
        status = PolicyStatus(
            header=self._header(), state="inactive", reason=Reason.INACTIVE.value, text=text, epoch=self._executor.epoch
        )
        self._status.publish(status)
        if self.pipeline is not None:
            self.pipeline.trace.finish()
        self._publish_ticks()
        self._diagnostics.publish(self._make_diagnostics(status))

    def _publish_ticks(self) -> None:
        ticks = self.pipeline.trace.take() if self.pipeline is not None else []
        if ticks:
            self._ticks.publish(to_trace_message(ticks, self._node.get_clock().now().nanoseconds))

    def close(self) -> None:
        self._outbox.close()
        for publisher in (self._status, self._chunk, self._timing, self._command, self._ticks, self._diagnostics):
            self._node.destroy_publisher(publisher)

    def _make_status(self, state: str, record: TickRecord | None, tick_errors_s: Ring, prompt: str) -> PolicyStatus:
        p50, p99, largest = tick_errors_s.percentiles()
        counters = self._executor.counters
        status = PolicyStatus(
            header=self._header(),
            state=state,
            reason=Reason.FIRST_CHUNK.value,
            text="the control loop is starting",
            epoch=self._executor.epoch,
            prompt=prompt,
            rtc_mode=self._mode,
            input_spread=math.nan,
            rows_left=self._executor.rows_left,
            delay_forecast=self._executor.delay_forecast,
            tick_error_p50=p50,
            tick_error_p99=p99,
            tick_error_max=largest,
            missed_ticks=counters.missed_ticks,
            starved_ticks=counters.starved_ticks,
            hold_ticks=counters.hold_ticks,
            stops=counters.stops,
            chunks=counters.chunks,
            chunks_discarded=counters.chunks_discarded,
            chunks_rejected=counters.chunks_rejected,
            policy_errors=counters.policy_errors,
        )
        if record is not None:
            status.tick = record.command.tick
            status.reason, status.text = record.command.reason.value, record.command.text or state
            status.input_names = list(record.sample.ages)
            status.input_ages = [float(age) for age in record.sample.ages.values()]
            status.input_spread = float(record.sample.spread_s)
        add_clocks(status, self._inputs.clocks)
        add_control_time(status, self._timekeeper)
        if self.pipeline is not None and self.pipeline.motion is not None:
            add_motion(status, self._names, self.pipeline.motion, self.pipeline.live)
        return status

    def _log_change(self, status: PolicyStatus) -> bool:
        key = (status.state, status.reason)
        if key == self._logged:
            return False
        self._logged = key
        line = f"{status.state}: {status.text}"
        if LEVELS[status.state] == DiagnosticStatus.OK:  # one call each: rclpy ties a severity to its line of code
            self._node.get_logger().info(line)
        else:
            self._node.get_logger().warning(line)
        return True

    def _log_degradation(self) -> bool:
        before, self._degradation = self._degradation, self._executor.degradation
        if before == self._degradation:
            return False
        if self._degradation is None:
            self._node.get_logger().info("rtc: the configured execution horizon is kept again")
        else:
            self._node.get_logger().warning(f"rtc: {self._degradation}", throttle_duration_sec=LOG_PERIOD_S)
        return True

    def _make_diagnostics(self, status: PolicyStatus) -> DiagnosticArray:
        remarks = [*self._inputs.warnings, *self._inputs.clocks.remarks(), *self._inputs.gaps.remarks()]
        warnings = {**self.warnings, **{f"warning_{i}": text for i, text in enumerate(remarks)}}
        warnings |= {"warning_rtc": self._degradation} if self._degradation else {}
        values = {
            "reason": status.reason,
            "epoch": status.epoch,
            "chunks": status.chunks,
            "chunks_late": self._executor.counters.chunks_late,
            "starved_ticks": status.starved_ticks,
            "missed_ticks": status.missed_ticks,
            "stops": status.stops,
            "tick_error_p99_s": f"{status.tick_error_p99:.6f}",
            **{f"age_{name}_s": f"{age:.3f}" for name, age in zip(status.input_names, status.input_ages, strict=True)},
            **{f"received_{topic}": count for topic, count in self._inputs.received.items()},
            **{f"unseen_{topic}": count for topic, count in self._inputs.gaps.unseen.items()},
            **warnings,
        }
        values |= {"bound": status.bound, "feasible": status.feasible}
        values |= {name: f"{getattr(status, name):.4g}" for name in SHOWN_CONTROL_TIME}
        level = LEVELS[status.state]
        if warnings and level == DiagnosticStatus.OK:
            level = DiagnosticStatus.WARN
        pairs = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        name = f"{self._node.get_fully_qualified_name().lstrip('/')}: policy"
        entry = DiagnosticStatus(
            level=level, name=name, message=f"{status.state}: {status.text}", hardware_id=self._spec.name, values=pairs
        )
        return DiagnosticArray(header=self._header(), status=[entry])

    def _header(self) -> Header:
        return Header(stamp=to_time(self._node.get_clock().now().nanoseconds))
