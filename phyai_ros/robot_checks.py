"""Settings of joints, outputs and limits against the policy: what contradicts it, and one value per joint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phyai_core.types import PolicySpec
from phyai_ros.joints import robot_joint_names
from phyai_ros.parameters import Problem
from phyai_ros.robot_settings import END_EFFECTOR, ONE_JOINT, STREAMED, Output
from phyai_ros.setting_types import Group
from phyai_ros.settings import Settings

MAY_BE_EMPTY = {
    "limits": ("max_jerk", "position_lower", "position_upper"),
    "tracking": ("max_error", "max_effort"),
    "joints": ("scale", "offset"),
}
MUST_BE_GIVEN = {"limits": ("max_velocity", "max_acceleration")}


def named_outputs(settings: Settings) -> dict[str, Output]:
    """{parameter group: output}: the groups of outputs.keys, or output alone."""
    if not settings.outputs.keys:
        return {"output": settings.output}
    return {f"outputs.{key}": settings.outputs.by_key[key] for key in settings.outputs.keys}


def joint_actions(settings: Settings, spec: PolicySpec) -> tuple[bool, ...]:
    """Which actions [A] are joints that joint_states can name: all but those of a twist or a pose."""
    other = {
        name
        for output in named_outputs(settings).values()
        if output.type in END_EFFECTOR
        for name in output.joints or robot_joint_names(settings.joints, spec)
    }
    return tuple(name not in other for name in robot_joint_names(settings.joints, spec))


def check_robot(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    """Everything about joints, outputs and limits that does not fit the policy."""
    yield from _joints(settings, spec)
    yield from _shares(settings, spec)
    for name, output in named_outputs(settings).items():
        yield from _output(name, output, settings, spec)
    yield from _lists(settings, spec.action_dim)
    yield from _bounds(settings, spec.action_dim)


def fill_in(settings: Settings, spec: PolicySpec) -> dict[str, dict[str, Any]]:
    """{group: {name: value}}: one value per joint, and robot joint names where they were left to the policy."""
    own_names = tuple(feature.name for feature in spec.action)
    changes: dict[str, dict[str, Any]] = {"limits": {}, "tracking": {}, "joints": {}}
    for table in (MUST_BE_GIVEN, MAY_BE_EMPTY):
        for group, names in table.items():
            values = getattr(settings, group)
            changes[group] |= {name: _per_joint(getattr(values, name), spec.action_dim) for name in names}
    changes["joints"]["names"] = settings.joints.names or own_names
    changes["output"] = {"joints": settings.output.joints or robot_joint_names(settings.joints, spec)}
    return changes


def _joints(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    names, own = settings.joints.names, [feature.name for feature in spec.action]
    if names and len(names) != len(own):
        allowed = f"{len(own)} names, for the actions {', '.join(own)}"
        yield Problem("joints.names", list(names), allowed, "name one robot joint per action, or leave it empty")
    if 0.0 in settings.joints.scale:
        yield Problem("joints.scale", list(settings.joints.scale), "numbers other than 0", "correct the joint")


def _shares(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    """Several outputs: each robot joint belongs to exactly one of them."""
    if not settings.outputs.keys:
        return
    wanted = list(robot_joint_names(settings.joints, spec))
    given = [name for output in named_outputs(settings).values() for name in output.joints]
    if sorted(given) != sorted(wanted):
        missing = [f"add {name}" for name in wanted if name not in given]
        extra = [f"remove {name}" for name in dict.fromkeys(given) if given.count(name) > wanted.count(name)]
        allowed = f"each of {', '.join(wanted)} in the joints of exactly one output"
        yield Problem("outputs.keys", list(settings.outputs.keys), allowed, "; ".join([*missing, *extra]))


def _output(name: str, output: Output, settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    robot_joints, policy_hz = list(robot_joint_names(settings.joints, spec)), 1.0 / spec.dt_s
    if output.joints and not settings.outputs.keys and sorted(output.joints) != sorted(robot_joints):
        allowed = f"the joints {', '.join(robot_joints)} in the controller's order"
        yield Problem(f"{name}.joints", list(output.joints), allowed, "name exactly these, or leave it empty")
    if output.rate_hz and output.rate_hz < policy_hz * 0.999:
        allowed = f"0, or at least the policy's rate {policy_hz:g} Hz"
        yield Problem(f"{name}.rate_hz", output.rate_hz, allowed, "raise it, or set 0.0")
    if output.rate_hz and output.type not in STREAMED:
        allowed = f"0 with output.type {output.type} (its controller interpolates)"
        yield Problem(f"{name}.rate_hz", output.rate_hz, allowed, f"set 0.0, or a type of {', '.join(STREAMED)}")
    yield from _kinds(name, output, settings, spec)


def _kinds(name: str, output: Output, settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    """Joint outputs take positions, servo_twist a twist, servo_pose a pose, a gripper command one joint."""
    features = dict(zip(robot_joint_names(settings.joints, spec), spec.action, strict=False))
    mine = [features[joint] for joint in output.joints or features if joint in features]
    wanted = END_EFFECTOR.get(output.type) or (1 if output.type in ONE_JOINT else len(mine))
    if len(mine) != wanted:
        allowed = f"types that take {len(mine)} actions; {output.type} takes {wanted}"
        yield Problem(f"{name}.type", output.type, allowed, "choose another type, or other joints for this output")
    kind = "velocity" if output.type == "servo_twist" else "position"
    others = sorted({feature.kind for feature in mine} - {kind})
    if others:
        adapter = f"{settings.inference.adapter} (actions: {', '.join(others)})"
        allowed = f"policies with {kind} actions, as {name}.type {output.type} takes"
        yield Problem("inference.adapter", adapter, allowed, "choose another policy or another type")


def _lists(settings: Settings, joints: int) -> Iterator[Problem]:
    for table, counts in ((MUST_BE_GIVEN, (1, joints)), (MAY_BE_EMPTY, (0, 1, joints))):
        for group, names in table.items():
            yield from _sizes(group, getattr(settings, group), names, counts)


def _sizes(group: str, values: Group, names: tuple[str, ...], counts: tuple[int, ...]) -> Iterator[Problem]:
    allowed = f"one value for all joints, or {counts[-1]}" + (", or none" if 0 in counts else "")
    for name in names:
        value = getattr(values, name)
        if len(value) not in counts:
            fix = "give one value per joint in the order of joints.names"
            yield Problem(f"{group}.{name}", list(value), allowed, fix)


def _bounds(settings: Settings, joints: int) -> Iterator[Problem]:
    lower = _per_joint(settings.limits.position_lower, joints)
    upper = _per_joint(settings.limits.position_upper, joints)
    if len(lower) == len(upper) == joints and any(low >= high for low, high in zip(lower, upper, strict=True)):
        allowed = f"values below limits.position_upper {list(settings.limits.position_upper)}"
        fix = "correct the joint where lower is not below upper"
        yield Problem("limits.position_lower", list(settings.limits.position_lower), allowed, fix)


def _per_joint(values: tuple[float, ...], joints: int) -> tuple[float, ...]:
    return values * joints if len(values) == 1 else values
