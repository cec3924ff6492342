"""The small print of a report: which bag, which policy, which parameters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from phyai_ros.assembly import LoadedPolicy
from phyai_ros.camera_view import CameraView
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.findings import Finding
from phyai_ros.replay.scenario import Scenario
from phyai_ros.replay.topics import NodeName


def describe_bag(bag: Bag) -> str:
    return f"bag: {bag.path.name}, {bag.count} messages in {bag.duration_s:.3f} s"


def describe_replay(
    policy: LoadedPolicy, params: Path, node: NodeName, scenario: Scenario, remarks: Iterable[Finding]
) -> list[str]:
    """`remarks` are what makes this another run than the recorded one."""
    settings = policy.settings
    weights = Path(settings.inference.checkpoint).name or "shipped weights"
    mode = f"mode {settings.rtc.mode}, execution horizon {settings.rtc.execution_horizon} ticks"
    again = "the same bytes" if scenario.repeatable else "other figures: latencies were measured here"
    return [
        f"policy: {policy.spec.name} ({weights}) on {settings.inference.device}, {mode}",
        f"parameters: {params.name}, node {node.full}",
        *(f"but {remark.text}" for remark in remarks),
        *(
            f"camera {camera.key}: {CameraView(settings.cameras.by_key[camera.key], camera).describe()}"
            for camera in policy.spec.cameras
        ),
        f"scenario: {scenario.describe()}, noise seed {settings.inference.seed}",
        f"A second replay gives {again}.",
    ]
