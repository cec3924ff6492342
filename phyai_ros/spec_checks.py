"""Settings against the policy they are meant for: what contradicts it, and the values left to the policy filled in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phyai_core.types import PolicySpec
from phyai_ros.parameters import ParameterError, Problem
from phyai_ros.robot_checks import check_robot, fill_in
from phyai_ros.settings import Settings

# Modes of the executor alone: no support by the policy is needed.
ALWAYS_POSSIBLE = ("none", "blend", "ensemble", "sync", "instant")


def check_against_spec(settings: Settings, spec: PolicySpec) -> Settings:
    """Settings with every value left to the policy filled in (s, denoise steps, joint names, one limit per joint).

    Afterwards output.joints holds the robot's names, prefix included. Raises ParameterError with all contradictions.
    """
    problems = [*_policy(settings, spec), *_rtc(settings, spec), *_cameras(settings, spec), *_clouds(settings, spec)]
    problems += check_robot(settings, spec)
    if problems:
        raise ParameterError(problems)
    return _fill_in(settings, spec)


def _policy(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    steps = settings.inference.num_denoise_steps
    if steps and not spec.num_denoise_steps:
        yield Problem("inference.num_denoise_steps", steps, f"0, as {spec.name} has no denoise steps", "set it to 0")


def _rtc(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    rtc, horizon, delay = settings.rtc, spec.action_horizon, max(1, settings.rtc.delay_initial)
    modes = list(dict.fromkeys([*ALWAYS_POSSIBLE, *spec.rtc_modes]))
    if rtc.mode not in modes:
        yield Problem("rtc.mode", rtc.mode, f"{', '.join(modes)} with the policy {spec.name}", "set one of these")
    least, most = (1, horizon) if rtc.mode == "instant" else (delay, horizon - delay)
    if rtc.mode == "instant" and settings.inference.placement != "thread":
        allowed = "thread with rtc.mode instant, whose inference runs inside the control tick"
        yield Problem("inference.placement", settings.inference.placement, allowed, "set it to thread")
    if least > most and horizon == 1:
        allowed = f"instant with the policy {spec.name}, which plans one row at a time"
        yield Problem("rtc.mode", rtc.mode, allowed, "set it to instant")
    elif least > most:
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


def _clouds(settings: Settings, spec: PolicySpec) -> Iterator[Problem]:
    given, wanted = settings.inputs.cloud_topics, [cloud.key for cloud in spec.clouds]
    if len(given) != len(wanted) or "" in given:
        allowed = f"one topic for each point cloud of {spec.name}: {', '.join(wanted) or 'none'}"
        yield Problem("inputs.cloud_topics", list(given), allowed, f"give {len(wanted)} topic names, in this order")


def _execution_horizon(settings: Settings, spec: PolicySpec) -> int:
    return settings.rtc.execution_horizon or max(1, spec.action_horizon // 2)


def _fill_in(settings: Settings, spec: PolicySpec) -> Settings:
    steps = settings.inference.num_denoise_steps or spec.num_denoise_steps
    weight = settings.rtc.max_guidance_weight or float(max(1, steps))
    changes: dict[str, dict[str, Any]] = {
        "inference": {"num_denoise_steps": steps},
        "rtc": {"execution_horizon": _execution_horizon(settings, spec), "max_guidance_weight": weight},
        **fill_in(settings, spec),
    }
    groups = {name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    return settings.model_copy(update=groups)
