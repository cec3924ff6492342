"""All checks in the order in which a user would mend them: parameters, policy, machine, inputs, robot, running node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from phyai_ros.doctor.checks import Check, Level, fail, ok, warn
from phyai_ros.doctor.hearing import Hearing
from phyai_ros.doctor.inputs import check_inputs
from phyai_ros.doctor.machine import check_machine
from phyai_ros.doctor.policy import check_params_file, check_policy
from phyai_ros.doctor.robot import check_robot_side
from phyai_ros.settings import Settings

if TYPE_CHECKING:
    from rclpy.node import Node

    from phyai_ros.assembly import LoadedPolicy

STATUS_S = 0.6  # ~/status comes ten times a second
LEVELS = {"running": Level.OK, "disabled": Level.OK, "inactive": Level.OK, "waiting": Level.WARN, "holding": Level.WARN}


def examine_files(path: Path, policy_name: str) -> tuple[Settings | None, LoadedPolicy | None, list[Check]]:
    """Parameters and policy. Settings filled in from the policy; None where it could not be loaded. Close it."""
    settings, checks = check_params_file(path, policy_name)
    if settings is None:
        return None, None, checks
    policy, more = check_policy(settings)
    checks += more
    return (settings if policy is None else policy.settings), policy, checks


def examine_graph(
    node: Node, policy: LoadedPolicy, policy_name: str, seconds: float = 2.0, discovery_s: float = 3.0
) -> list[Check]:
    """What the policy node would meet on this graph. `node` is our own, in the policy's namespace, spun by nobody."""
    settings, spec = policy.settings, policy.spec
    hearing = Hearing(node, settings, spec)
    try:
        hearing.run(seconds, discovery_s)
        return [*check_inputs(node, policy, hearing), *check_robot_side(node, settings, spec, policy_name)]
    finally:
        hearing.close()


def examine_node(node: Node, policy_name: str, seconds: float = STATUS_S) -> list[Check]:
    """What a policy node that runs already says of itself."""
    from phyai_ros.dashboard.feed import Feed

    feed = Feed(node, policy_name, with_images=False)
    feed.open()
    try:
        time.sleep(seconds)
        status = feed.poll().status
    finally:
        feed.close()
    if status is None:
        return [ok("node", policy_name, "is not active (nothing wrong before a start)")]
    text = f"{status.state}: {status.text}"
    level = LEVELS.get(status.state, Level.FAIL)
    if level is Level.OK and not status.feasible:
        fix = "raise rtc.execution_horizon up to H - d, or make inference faster"
        return [fail("node", policy_name, "the counted delays violate d <= s <= H - d", fix)]
    if level is Level.OK:
        return [ok("node", policy_name, text)]
    return [(warn if level is Level.WARN else fail)("node", policy_name, text, "mend what the text names")]


__all__ = ["check_machine", "examine_files", "examine_graph", "examine_node"]
