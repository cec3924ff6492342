"""Every kind of policy in the policy node, with its fixture checkpoint, between a robot that publishes what the policy
asks for and a listener. Guards against: an adapter that runs alone but not in the node."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from phyai_adapters import load_adapter
from ros.policy_rig import PolicyRig

MODELS = Path(__file__).parents[1] / "golden" / "models"
FOLDERS = {"groot": "groot_n1_7", "minicpm": "minicpm_v46_backbone", "g1": "../policies/g1", "h1": "../policies/h1"}
ADAPTERS = {"g1": "policy_file", "h1": "policy_file"}
MODES = {
    "g1": "instant",
    "h1": "instant",
    "act": "ensemble",
    "diffusion": "blend",
    "minicpm": "hard",
    "cosmos3": "hard",
}


@pytest.fixture(autouse=True)
def own_domain(ros_environment):
    """Every test of this file talks on a domain of this process."""


class Sensors(Node):
    """Publishes the joints and cameras that a policy's spec asks for."""

    def __init__(self, context, spec) -> None:
        super().__init__("sensors", context=context)
        self._joints = sorted({feature.name for feature in (*spec.state, *spec.action)})
        self._states = self.create_publisher(JointState, "joint_states", 10)
        self._cameras = [(c, self.create_publisher(Image, f"camera/{c.key}/image_raw", 10)) for c in spec.cameras]
        self.create_timer(0.02, self._publish)

    def _publish(self) -> None:
        stamp, zeros = self.get_clock().now().to_msg(), [0.0] * len(self._joints)
        message = JointState(name=self._joints, position=zeros, velocity=zeros)
        message.header.stamp = stamp
        self._states.publish(message)
        for camera, publisher in self._cameras:
            size = {"height": camera.height, "width": camera.width, "step": 3 * camera.width}
            image = Image(encoding="rgb8", data=array("B", bytes(3 * camera.height * camera.width)), **size)
            image.header.stamp = stamp
            publisher.publish(image)


@pytest.mark.parametrize("kind", ["act", "cosmos3", "diffusion", "g1", "groot", "h1", "minicpm", "smolvla"])
def test_drives_a_robot(kind):
    if kind == "g1":
        pytest.importorskip("onnxruntime")
    folder = MODELS / FOLDERS.get(kind, kind)
    adapter = ADAPTERS.get(kind, kind)
    spec = load_adapter(adapter, folder, torch.device("cpu")).spec
    cameras = {f"cameras.{camera.key}.topic": f"camera/{camera.key}/image_raw" for camera in spec.cameras}
    parameters = {
        "inference.adapter": adapter,
        "inference.warmup_runs": 0,  # on a busy machine no latency is short enough
        "inference.checkpoint": str(folder),
        "cameras.front.topic": None,
        "cameras.keys": [camera.key for camera in spec.cameras],
        **cameras,
        "prompt": "pick up the block",
        "rtc.mode": MODES.get(kind, "identity"),
        "rtc.execution_horizon": max(1, spec.action_horizon // 2),
        "start.max_step_rad": 10.0,  # the weights are random: where they send the robot means nothing
        "limits.max_velocity": [100.0],
        "limits.max_acceleration": [1000.0],
    }
    with PolicyRig(**parameters) as rig:
        rig.robot.joints_on = rig.robot.camera_on = False
        rig.serve(Sensors(rig.context, spec))
        rig.start()
        rig.wait_for_news("command", 2 * spec.action_horizon + 10)
        rows, chunk = rig.robot.heard["command"], rig.robot.heard["chunk"][-1]
    assert list(chunk.names) == [feature.name for feature in spec.action] == list(rows[-1].name)
    assert (chunk.rows, chunk.columns) == (spec.action_horizon, spec.action_dim)
    positions = np.array([row.position for row in rows])
    assert np.isfinite(positions).all() and np.ptp(positions, axis=0).min() > 0
