"""Builds the output of a configured node: its parts, and where their messages go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from phyai_core.types import PolicySpec
from phyai_ros.joints import robot_joint_names
from phyai_ros.outputs import load_output
from phyai_ros.outputs.base import Output, OutputConfig
from phyai_ros.outputs.channels import Channel, ShadowChannel
from phyai_ros.outputs.combined import CombinedOutput, Part
from phyai_ros.robot_checks import named_outputs
from phyai_ros.settings import Output as OutputSettings
from phyai_ros.settings import Settings

if TYPE_CHECKING:
    from rclpy.node import Node

Connect = Callable[[type[Output], str], Channel]


class _Listener:
    """A channel that only hands messages to a function."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send

    def take_fault(self) -> None:
        return None

    def close(self) -> None:
        return


def make_output(settings: Settings, spec: PolicySpec, publish: Callable[[Any], None]) -> Output:
    """The output, sending every message through `publish`; for tests."""
    return _assemble(settings, spec, lambda kind, topic: _Listener(publish))


def make_output_by_topic(settings: Settings, spec: PolicySpec, publish: Callable[[str, Any], None]) -> Output:
    """The output, sending every message through `publish(topic, message)`; for replays."""
    return _assemble(settings, spec, lambda kind, topic: _Listener(partial(publish, topic)))


def open_output(node: Node, settings: Settings, spec: PolicySpec) -> Output:
    """The output with its publishers and action clients. Raises ValueError where an interface is not installed."""

    def connect(kind: type[Output], topic: str) -> Channel:
        if not settings.shadow:
            return kind.open_channel(node, topic)
        with ExitStack() as made:
            real = kind.open_channel(node, topic)
            made.callback(real.close)
            channel = ShadowChannel(real, kind.open_shadow(node, topic))
            made.pop_all()
        return channel

    return _assemble(settings, spec, connect)


def _assemble(settings: Settings, spec: PolicySpec, connect: Connect) -> Output:
    groups = named_outputs(settings)
    joints = robot_joint_names(settings.joints, spec)
    with ExitStack() as made:
        outputs: dict[str, tuple[Output, list[Any] | None]] = {}
        for group, config in groups.items():
            kind = load_output(config.type)
            channel = connect(kind, config.topic or kind.default_topic)
            made.callback(channel.close)
            outbox: list[Any] | None = [] if settings.outputs.keys else None
            send = channel.send if outbox is None else outbox.append
            outputs[group] = (kind(_config_of(config, joints, settings, spec), send, channel), outbox)
        output = _combine(outputs, joints, settings, spec)
        made.pop_all()
    return output


def _combine(
    outputs: Mapping[str, tuple[Output, list[Any] | None]],
    joints: tuple[str, ...],
    settings: Settings,
    spec: PolicySpec,
) -> Output:
    if not settings.outputs.keys:
        return next(iter(outputs.values()))[0]
    parts = []
    for group, (output, outbox) in outputs.items():
        columns = np.array([joints.index(name) for name in output.config.joint_names], np.intp)
        parts.append(Part(group, columns, output, outbox))
    config = OutputConfig(joints, spec.dt_s, settings.limits.max_acceleration)
    return CombinedOutput(config, parts, [output.channel.send for output, _ in outputs.values()])


def _config_of(output: OutputSettings, joints: tuple[str, ...], settings: Settings, spec: PolicySpec) -> OutputConfig:
    mine = tuple(name for name in joints if not output.joints or name in output.joints)
    accelerations = dict(zip(joints, settings.limits.max_acceleration, strict=False))
    jerks = dict(zip(joints, settings.limits.max_jerk, strict=False))
    return OutputConfig(
        joint_names=mine,
        dt_s=spec.dt_s,
        max_acceleration=tuple(accelerations[name] for name in mine),
        max_jerk=tuple(jerks[name] for name in mine) if jerks else (),
        controller_joints=output.joints,
        rate_hz=output.rate_hz,
        profile=output.profile,
        stamp_lead_s=output.stamp_lead_s,
        frame=output.frame,
        max_effort=output.max_effort,
    )
