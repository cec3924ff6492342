"""What is worth knowing about a replay: where the robot would have held or stopped, and where it parts from the bag."""

from __future__ import annotations

import math

import numpy as np

from phyai_core.types import Action, Reason
from phyai_ros.replay.action_log import ActionLog, TickLine
from phyai_ros.replay.comparison import Comparison
from phyai_ros.replay.findings import Finding, Findings
from phyai_ros.replay.replay_run import ReplayResult
from phyai_ros.settings import Limits

QUIET = {Reason.DISABLED, Reason.PAUSED, Reason.INACTIVE, Reason.SYNC_WAIT}  # asked for, or part of the mode
STARTING = {Reason.FIRST_CHUNK, Reason.WAITING_INPUT, Reason.RESET}  # a moment of each is how every start looks
NOT_YET = {Reason.INPUT_MISSING, Reason.INPUT_STALE}  # before the robot has ever moved
LONG_WAIT_S = 1.0
LATE_LAG_S = 0.1
POLICY = "policy"  # stands for a topic in findings that concern none


def find_in_log(result: ReplayResult, limits: Limits) -> list[Finding]:
    """By bag time."""
    findings = Findings()
    _judge_stretches(result.log, findings)
    _judge_limits(result.log, limits, findings)
    for inference in result.inferences:
        if inference.failed:
            time_s = result.log.since_start_s(inference.request.launch_ns)
            findings.add(time_s, "error", POLICY, "policy_error", inference.failed)
    if result.comparison is not None:
        _judge_comparison(result.comparison, findings)
    if result.parity is not None and not result.parity.exact:
        time_s = 0.0 if math.isnan(result.parity.first_s) else result.parity.first_s
        findings.add(time_s, "warning", POLICY, "parity", str(result.parity))
    if not result.log.chunks:
        findings.add(0.0, "error", POLICY, "never_ran", "no action would have been commanded in the whole bag")
    return findings.list()


def _judge_stretches(log: ActionLog, findings: Findings) -> None:
    for line, count in log.stretches():
        if line.action is Action.RUN or line.reason in QUIET:
            continue
        time_s, lasted_s = log.since_start_s(line.stamp_ns), count * log.dt_s
        text = f"{_verb(line)} for {lasted_s:.2f} s: {line.text}"
        kind = f"{line.action.value}_{line.reason.value}"
        if line.reason not in STARTING and (line.action is not Action.NONE or line.reason not in NOT_YET):
            findings.add(time_s, "warning", POLICY, kind, text)
        elif lasted_s > LONG_WAIT_S:
            findings.add(time_s, "note", POLICY, kind, text)


def _verb(line: TickLine) -> str:
    return {Action.HOLD: "holds", Action.STOP: "brakes and stands", Action.NONE: "waits"}[line.action]


def _judge_limits(log: ActionLog, limits: Limits, findings: Findings) -> None:
    """Rows beyond the limits that were commanded all the same: none, unless the safety of the node is switched off."""
    stamps, rows = log.rows()
    for name, joint, ticks in beyond_limits(log, limits):
        worst = int(ticks[np.abs(rows[ticks, joint]).argmax()])
        text = (
            f"{log.names[joint]}: {len(ticks)} commands are beyond limits.{name}, the largest {rows[worst, joint]:.3f}"
        )
        findings.add(log.since_start_s(int(stamps[ticks[0]])), "error", POLICY, "limit", text)


def beyond_limits(log: ActionLog, limits: Limits) -> list[tuple[str, int, np.ndarray]]:
    """(limit, joint, rows that are beyond it) of each joint with such rows."""
    _, rows = log.rows()
    lower, upper = (np.broadcast_to(v or (w,), len(log.names)) for v, w in _bounds(limits))
    beyond = {"position_lower": rows < lower, "position_upper": rows > upper}
    return [
        (name, int(joint), np.flatnonzero(off[:, joint]))
        for name, off in beyond.items()
        for joint in np.flatnonzero(off.any(axis=0))
    ]


def _bounds(limits: Limits) -> tuple[tuple[tuple[float, ...], float], ...]:
    return (limits.position_lower, -np.inf), (limits.position_upper, np.inf)


def _judge_comparison(comparison: Comparison, findings: Findings) -> None:
    topic = comparison.topic
    if not comparison.ticks:
        findings.add(0.0, "note", topic, "nothing_compared", "no command falls where this topic has values")
        return
    if not math.isnan(comparison.first_parting_s):
        text = f"here the replay parts from the recording, {comparison.parting_joint} first"
        findings.add(comparison.first_parting_s, "warning", topic, "parting", text)
    for joint in comparison.joints:
        if abs(joint.lag_s) > LATE_LAG_S:
            side = "behind" if joint.lag_s > 0 else "ahead of"
            text = f"{joint.name}: the replay is {abs(joint.lag_s):.2f} s {side} the recording"
            findings.add(0.0, "note", topic, "lag", text)
    for event in comparison.gripper:
        if math.isnan(event.offset_s):
            verb = "closes" if event.closes else "opens"
            findings.add(
                event.time_s, "warning", topic, "gripper", f"the gripper {verb} here, in the replay it does not"
            )
    if comparison.open_loop.ratio >= 1.0:
        text = (
            f"chunks foretell the recording no better than holding still (error ratio {comparison.open_loop.ratio:.2f})"
        )
        findings.add(0.0, "warning", topic, "open_loop", text)
