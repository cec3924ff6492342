"""Settings against the policy they are meant for: what contradicts it, and the values left to the policy filled in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phyai_core.types import PolicySpec
from phyai_ros.joints import robot_joint_names
from phyai_ros.parameters import ParameterError, Problem
from phyai_ros.settings import Settings

# Modes of the executor alone: no support by the policy is needed.
ALWAYS_POSSIBLE = ("none", "blend", "ensemble", "sync")


def check_against_spec(settings: Settings, spec: PolicySpec) -> Settings:
    """Settings with every value left to the policy filled in (s, denoise steps, joint names, one limit per joint).

    Afterwards output.joints holds the robot's names, prefix included. Raises ParameterError with all contradictions.
    """
    problems = [*_policy(settings, spec), *_rtc(settings, spec), *_cameras(settings, spec), *_joints(settings, spec)]
    problems += [*_output(settings, spec), *_limits(settings, spec)]
    if problems:
        raise ParameterError(problems)
    return _fill_in(settings, spec)


def _policy(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    adapter = settings.inference.adapter
    kinds = sorted({feature.kind for feature in spec.action} - {"position"})
    if kinds:
        allowed, fix = "policies whose actions are joint positions", "choose another policy"
        yield Problem("inference.adapter", f"{adapter} (actions: {', '.join(kinds)})", allowed, fix)
    steps = settings.inference.num_denoise_steps
    if steps and not spec.num_denoise_steps:
        yield Problem("inference.num_denoise_steps", steps, f"0, as {spec.name} has no denoise steps", "set it to 0")


def _rtc(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    rtc, horizon, delay = settings.rtc, spec.action_horizon, max(1, settings.rtc.delay_initial)
    modes = list(dict.fromkeys([*ALWAYS_POSSIBLE, *spec.rtc_modes]))
    if rtc.mode not in modes:
        yield Problem("rtc.mode", rtc.mode, f"{', '.join(modes)} with the policy {spec.name}", "set one of these")
    least, most = delay, horizon - delay
    if least > most:
        fix = "lower it, or use a policy with a longer action horizon"
        yield Problem("rtc.delay_initial", delay, f"1 to {horizon // 2} ticks (half the action horizon {horizon})", fix)
    elif not least <= _execution_horizon(settings, spec) <= most:
        allowed = f"{least} to {most} ticks (action horizon {horizon}, initial delay forecast {delay})"
        yield Problem("rtc.execution_horizon", rtc.execution_horizon, allowed, "set a value in this range")
    if rtc.mask_ext != "full" and rtc.mask_ext > horizon:
        yield Problem("rtc.mask_ext", rtc.mask_ext, f"full, or 0 to {horizon} rows", "set full, or fewer rows")
    names = [feature.name for feature in spec.action]
    if not set(rtc.exclude) <= set(names):
        allowed = f"actions of {spec.name}: {', '.join(names)}"
        yield Problem("rtc.exclude", list(rtc.exclude), allowed, "name these, or leave it empty")
    elif rtc.exclude and rtc.mode == "trained":
        allowed = "empty with rtc.mode trained, whose policy was trained to continue whole rows"
        yield Problem("rtc.exclude", list(rtc.exclude), allowed, "leave it empty, or choose another mode")


def _cameras(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    given, wanted = settings.cameras.keys, [camera.key for camera in spec.cameras]
    missing = [key for key in wanted if key not in given]
    extra = [key for key in given if key not in wanted]
    fixes = [f"add {key!r} and set cameras.{key}.topic" for key in missing] + [f"remove {key!r}" for key in extra]
    if fixes:
        allowed = f"exactly the cameras of {spec.name}: {', '.join(wanted) or 'none'}"
        yield Problem("cameras.keys", list(given), allowed, "; ".join(fixes))


def _joints(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    names, own = settings.joints.names, [feature.name for feature in spec.action]
    if names and len(names) != len(own):
        allowed = f"{len(own)} names, for the actions {', '.join(own)}"
        yield Problem("joints.names", list(names), allowed, "name one robot joint per action, or leave it empty")


def _output(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    output, policy_hz = settings.output, 1.0 / spec.dt_s
    robot_joints = list(robot_joint_names(settings.joints, spec))
    if output.joints and sorted(output.joints) != sorted(robot_joints):
        allowed = f"the joints {', '.join(robot_joints)} in the controller's order"
        yield Problem("output.joints", list(output.joints), allowed, "name exactly these, or leave it empty")
    if output.rate_hz and output.rate_hz < policy_hz * 0.999:
        allowed = f"0, or at least the policy's rate {policy_hz:g} Hz"
        yield Problem("output.rate_hz", output.rate_hz, allowed, "raise it, or set 0.0")
    if output.rate_hz and output.type != "forward_command":
        allowed = "0 with output.type joint_trajectory (its controller interpolates)"
        yield Problem("output.rate_hz", output.rate_hz, allowed, "set 0.0, or output.type forward_command")


def _limits(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    joints = spec.action_dim
    for name, values in settings.limits:
        may_be_empty = name.startswith("position")
        if len(values) not in ((0, 1, joints) if may_be_empty else (1, joints)):
            counts = f"one value for all joints, or {joints}" + (", or none" if may_be_empty else "")
            fix = "give one value per joint in the order of joints.names"
            yield Problem(f"limits.{name}", list(values), counts, fix)
    lower = _per_joint(settings.limits.position_lower, joints)
    upper = _per_joint(settings.limits.position_upper, joints)
    if len(lower) == len(upper) == joints and any(low >= high for low, high in zip(lower, upper, strict=True)):
        allowed = f"values below limits.position_upper {list(settings.limits.position_upper)}"
        fix = "correct the joint where lower is not below upper"
        yield Problem("limits.position_lower", list(settings.limits.position_lower), allowed, fix)


def _execution_horizon(settings: Settings, spec: PolicySpec) -> int:
    return settings.rtc.execution_horizon or max(1, spec.action_horizon // 2)


def _per_joint(values: tuple[float, ...], joints: int) -> tuple[float, ...]:
    return values * joints if len(values) == 1 else values


def _fill_in(settings: Settings, spec: PolicySpec) -> Settings:
    steps = settings.inference.num_denoise_steps or spec.num_denoise_steps
    weight = settings.rtc.max_guidance_weight or float(max(1, steps))
    limits = {name: _per_joint(values, spec.action_dim) for name, values in settings.limits}
    own_names = tuple(feature.name for feature in spec.action)
    changes: dict[str, dict[str, Any]] = {
        "inference": {"num_denoise_steps": steps},
        "rtc": {"execution_horizon": _execution_horizon(settings, spec), "max_guidance_weight": weight},
        "joints": {"names": settings.joints.names or own_names},
        "output": {"joints": settings.output.joints or robot_joint_names(settings.joints, spec)},
        "limits": limits,
    }
    groups = {name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    return settings.model_copy(update=groups)
