"""The complete examples in config/: each is read by a node, fits a policy of its kind, and makes its outputs.

Guards against: an example with a name that no longer exists, joints that no output takes, lists of the wrong length.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rclpy.node import Node

from phyai_core.types import Action, ActionChunk, CameraSpec, Command, Feature, PolicySpec
from phyai_ros.limit_sources import resolve_limits
from phyai_ros.output_assembly import make_output
from phyai_ros.parameter_server import ParameterServer
from phyai_ros.spec_checks import check_against_spec
from ros.standins import provide

CONFIG = Path(__file__).parents[2] / "config"
MODES = ("none", "identity")
# file: (joints, cameras, chunk rows, messages for the first tick)
EXAMPLES = {
    "so101.yaml": (6, ("front", "wrist"), 50, {"JointTrajectory": 2}),
    "six_dof_gripper.yaml": (
        7,
        ("base_0_rgb", "left_wrist_0_rgb"),
        50,
        {"JointTrajectory": 1, "GripperCommand_Goal": 1},
    ),
    "franka_forward.yaml": (
        8,
        ("base_0_rgb", "left_wrist_0_rgb"),
        50,
        {"Float64MultiArray": 1, "GripperCommand_Goal": 1},
    ),
    "bimanual.yaml": (14, ("cam_high", "cam_left_wrist", "cam_right_wrist"), 100, {"JointTrajectory": 4}),
}


def make_spec(joints: int, cameras: tuple[str, ...], rows: int) -> PolicySpec:
    features = tuple(Feature(f"action_{i}") for i in range(joints))
    specs = tuple(CameraSpec(key, 224, 224) for key in cameras)
    return PolicySpec("example", rows, 0.02, specs, features, features, 32, 10, rtc_modes=MODES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_complete(graph, name):
    provide("control_msgs")
    joints, cameras, rows, expected = EXAMPLES[name]
    arguments = ["--ros-args", "--params-file", str(CONFIG / name)]
    node = graph.add(Node("policy", context=graph.context, cli_args=arguments))
    spec = make_spec(joints, cameras, rows)
    settings = check_against_spec(ParameterServer(node).read(), spec)
    limits = resolve_limits(settings.joints.names, settings.limits)
    assert np.isfinite([limits.velocity, limits.acceleration]).all()
    sent: list = []
    output = make_output(settings, spec, sent.append)
    output.start(np.zeros(joints), 0)
    chunk = np.linspace(0.005, 0.1, rows)[:, None] * np.ones(joints)
    actions = chunk.astype(np.float32)
    command = Command(Action.RUN, 0, 1, row=actions[0], chunk=ActionChunk(1, 1, 0, 0, actions, actions, 1), index=0)
    assert output.update(command, 10**18) is None
    kinds = [type(message).__name__ for message in sent]
    assert {kind: kinds.count(kind) for kind in kinds} == expected
    assert sorted(name for config in settings.outputs.by_key.values() for name in config.joints) == sorted(limits.names)
