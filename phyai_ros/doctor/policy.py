"""Parameters and policy: read, loaded, run and timed as the node would, without a node."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from phyai_ros.control_time_words import show_ms
from phyai_ros.doctor.checks import Check, fail, ok, split_fix, warn
from phyai_ros.parameters import ParameterError, build_settings

if TYPE_CHECKING:
    from phyai_ros.assembly import LoadedPolicy
    from phyai_ros.settings import Settings

PARAMETERS, POLICY = "parameters", "policy"
LITTLE_MARGIN = 1.5  # X at the warm-up below which jitter makes the robot wait


def check_params_file(path: Path, node: str) -> tuple[Settings | None, list[Check]]:
    """The settings that `path` gives to the node of this full name; None with the reasons where it gives none."""
    from phyai_ros.replay.params_file import read_params_file

    try:
        settings = build_settings(read_params_file(path, node))
    except ParameterError as error:
        return None, _explain(error)
    except ValueError as error:
        what, fix = split_fix(str(error))
        return None, [fail(PARAMETERS, path.name, what, fix)]
    return settings, [ok(PARAMETERS, path.name, "every name is known, every value allowed")]


def check_policy(settings: Settings) -> tuple[LoadedPolicy | None, list[Check]]:
    """Load it, run it and time it; None with the reasons where that fails."""
    from phyai_ros.assembly import load_policy

    lines: list[str] = []
    try:
        policy = load_policy(settings, lines.append)
    except ParameterError as error:
        return None, _explain(error)
    except ValueError as error:
        what, fix = split_fix(str(error))
        return None, [fail(POLICY, settings.inference.adapter, what, fix)]
    spec, warm = policy.spec, lines[-1].removeprefix("policy is warm: ")
    shape = f"{spec.name}: H {spec.action_horizon}, {spec.action_dim} actions, {spec.state_dim} state values"
    checks = [ok(POLICY, settings.inference.adapter, f"{shape}, {1 / spec.dt_s:g} Hz"), ok(POLICY, "inference", warm)]
    checks += [_check_latency(policy), _check_weights(policy), _check_memory(settings)]
    return policy, [*checks, _check_limits(policy), *_check_order(policy)]


def _explain(error: ParameterError) -> list[Check]:
    return [
        fail(PARAMETERS, problem.name, f"{problem.value!r} is not allowed; allowed: {problem.allowed}", problem.fix)
        for problem in error.problems
    ]


def _check_latency(policy: LoadedPolicy) -> Check:
    from phyai_ros.assembly import check_latency

    try:
        check_latency(policy)
    except ValueError as error:
        what, _, fix = str(error).rpartition(". ")
        return fail(POLICY, "latency", what, fix.rstrip("."))
    window_s = policy.settings.rtc.execution_horizon * policy.spec.dt_s
    x = window_s / policy.latency_s if policy.latency_s > 0 else math.nan
    text = f"X = {show_ms(window_s)} executed / {show_ms(policy.latency_s)} inference = {x:.2f}"
    if x < LITTLE_MARGIN:
        fix = "raise rtc.execution_horizon, take fewer denoise steps or a faster device"
        return warn(POLICY, "latency", f"{text}: plans come late whenever inference is a little slower", fix)
    return ok(POLICY, "latency", text)


def _check_limits(policy: LoadedPolicy) -> Check:
    from phyai_ros.joints import robot_joint_names
    from phyai_ros.limit_sources import resolve_limits

    names = robot_joint_names(policy.settings.joints, policy.spec)
    try:
        limits = resolve_limits(names, policy.settings.limits)
    except ValueError as error:
        what, fix = split_fix(str(error))
        return fail(PARAMETERS, "limits", what, fix)
    if not any(map(math.isfinite, limits.lower)) and not policy.settings.limits.robot_description:
        fix = "set limits.position_lower and _upper, limits.urdf_file, or limits.robot_description"
        return warn(PARAMETERS, "limits", "no joint has a position limit", fix)
    return ok(PARAMETERS, "limits", f"velocity {_spread(limits.velocity)}, acceleration {_spread(limits.acceleration)}")


def _check_order(policy: LoadedPolicy) -> list[Check]:
    """Joints that the policy knows by the same names, at other places: each would get the actions of another one."""
    own = [feature.name for feature in policy.spec.action]
    pairs = list(zip(policy.settings.joints.names or own, own, strict=True))
    swapped = [f"{joint} would do what the policy plans for {name}" for joint, name in pairs if name != joint in own]
    fix = f"write them in the policy's order: {', '.join(own)}"
    return [warn(PARAMETERS, "joints.names", ", ".join(swapped), fix)] if swapped else []


def _spread(values) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _check_weights(policy: LoadedPolicy) -> Check:
    """Which number formats the weights have, on which device."""
    from torch import nn

    if policy.settings.inference.placement == "process":
        return ok(POLICY, "weights", f"in a child process, on {policy.settings.inference.device}")
    attributes = [value for value in vars(policy.engine.adapter).values() if isinstance(value, nn.Module)]
    weights = [*nn.ModuleList(attributes).parameters()]  # each once: adapters name parts of their network as well
    kinds = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    count = sum(weight.numel() for weight in weights)
    text = f"{count / 1e6:.1f} million in {', '.join(kinds)}" if weights else "kept in a form of the policy's own"
    return ok(POLICY, "weights", f"{text} on {policy.settings.inference.device}")


def _check_memory(settings: Settings) -> Check:
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if settings.inference.device == "cpu":
        return ok(POLICY, "memory", f"{peak_mib:.0f} MiB at most in this process")
    import torch

    free, total = torch.cuda.mem_get_info(torch.device(settings.inference.device))
    text = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of the device are free with the policy loaded"
    return ok(POLICY, "memory", text) if free > 0.05 * total else warn(POLICY, "memory", text, "end other processes")
