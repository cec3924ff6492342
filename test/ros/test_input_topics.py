"""Guards against: subscriptions that silently do not match their publishers, robots that hear each other's topics."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from phyai_core.types import CameraSpec, Feature, PolicySpec, Reason
from phyai_ros.parameters import build_settings
from phyai_ros.spec_checks import check_against_spec

pytest.importorskip("rclpy", reason="rclpy is not installed")

SPEC = PolicySpec(
    name="arm",
    action_horizon=8,
    dt_s=0.04,
    cameras=(CameraSpec("front", 2, 3),),
    state=(Feature("yaw"),),
    action=(Feature("yaw"),),
    latent_dim=1,
    rtc_modes=("none", "identity"),
)
RGB = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)


def make_settings(**changes):
    """Old messages count: how slow the machine is, is not what these tests are about."""
    values = {"cameras.keys": ["front"], "cameras.front.topic": "camera/front", "inputs.max_age_s": 60.0, **changes}
    return check_against_spec(build_settings(values), SPEC)


def make_inputs(graph, namespace: str = "robot", sim_time: bool = False, **changes):
    from rclpy.parameter import Parameter

    from phyai_ros.inputs import Inputs

    override = [Parameter("use_sim_time", value=sim_time)]
    node = graph.node("policy", namespace=namespace, parameter_overrides=override)
    return Inputs(node, make_settings(**changes), SPEC), node


class Robot:
    """Publishes one joint and one camera on demand."""

    def __init__(
        self, graph, namespace: str = "robot", compressed: bool = False, reliability: str = "reliable"
    ) -> None:
        from rclpy.qos import QoSProfile, ReliabilityPolicy
        from sensor_msgs.msg import CompressedImage, Image, JointState

        self._node = graph.node("driver", namespace=namespace)
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy[reliability.upper()])
        self._joints = self._node.create_publisher(JointState, "joint_states", qos)
        self._camera = self._node.create_publisher(CompressedImage if compressed else Image, "camera/front", qos)
        self._compressed = compressed

    def publish(self, position: float = 0.5) -> bool:
        """Publish both; gives False, so that it can stand before `or` in a condition."""
        from sensor_msgs.msg import CompressedImage, Image, JointState

        joints, image = JointState(name=["yaw"], position=[position]), Image()
        if self._compressed:
            import cv2

            data = cv2.imencode(".png", RGB[:, :, ::-1])[1]
            image = CompressedImage(format="rgb8; png compressed bgr8", data=array("B", data.tobytes()))
        else:
            image = Image(encoding="rgb8", height=2, width=3, step=9, data=array("B", RGB.tobytes()))
        joints.header.stamp = image.header.stamp = self._node.get_clock().now().to_msg()
        self._joints.publish(joints)
        self._camera.publish(image)
        return False


def take(inputs, node, tick: int = 0):
    return inputs.sample(node.get_clock().now().nanoseconds, tick).obs


@pytest.mark.parametrize("compressed", [False, True])
def test_messages_become_an_observation(graph, compressed):
    transport = "compressed" if compressed else "raw"
    inputs, node = make_inputs(graph, **{"cameras.front.transport": transport})
    robot = Robot(graph, compressed=compressed)
    obs = graph.spin_until(lambda: robot.publish() or take(inputs, node), what="an observation")
    np.testing.assert_array_equal(obs.decode().images["front"], RGB)
    np.testing.assert_allclose(obs.state, [0.5])
    source = obs.sources[0]
    assert source.stamp_ns <= source.published_stamp_ns <= source.arrival_stamp_ns


def test_only_the_newest_message_counts_when_nobody_listened_for_a_while(graph):
    inputs, node = make_inputs(graph)
    robot = Robot(graph)
    graph.spin_until(lambda: robot.publish() or take(inputs, node))
    before = inputs.received["joint_states"]
    for step in range(50):
        robot.publish(float(step))
    graph.spin_until(lambda: take(inputs, node).measured[0] == 49, what="the newest joint state")
    assert inputs.received["joint_states"] - before < 50


def test_messages_that_never_came_are_counted_per_topic(graph):
    inputs, node = make_inputs(graph)
    robot = Robot(graph)
    graph.spin_until(lambda: robot.publish() or take(inputs, node))
    before = dict(inputs.received)
    for step in range(50):
        robot.publish(float(step))
    graph.spin_until(lambda: take(inputs, node).measured[0] == 49, what="the newest joint state")
    unseen = 50 - (inputs.received["joint_states"] - before["joint_states"])
    assert 0 < unseen <= inputs.gaps.unseen["joint_states"]
    assert inputs.gaps.unseen.keys() == {"joint_states", "camera/front"}


def test_a_publisher_with_another_quality_of_service_is_named(graph):
    inputs, _ = make_inputs(graph, **{"cameras.front.qos": "reliable"})
    assert "nobody publishes /robot/camera/front" in inputs.warnings
    robot = Robot(graph, reliability="best_effort")
    warning = graph.spin_until(
        lambda: robot.publish() or [text for text in inputs.warnings if "driver on /robot/camera/front" in text]
    )
    assert "do not arrive" in warning[0] and "best effort" in warning[0].lower()
    assert not any("joint_states" in text for text in inputs.warnings)


def test_robots_in_two_namespaces_do_not_hear_each_other(graph):
    left, left_node = make_inputs(graph, "left")
    right, right_node = make_inputs(graph, "right")
    left_robot, right_robot = Robot(graph, "left"), Robot(graph, "right")
    condition = lambda: take(left, left_node) and take(right, right_node)  # noqa: E731
    graph.spin_until(lambda: left_robot.publish(0.25) or right_robot.publish(0.75) or condition())
    assert take(left, left_node).measured[0] == 0.25 and take(right, right_node).measured[0] == 0.75


def test_after_close_nothing_is_received(graph):
    inputs, node = make_inputs(graph)
    robot = Robot(graph)
    graph.spin_until(lambda: robot.publish() or take(inputs, node))
    inputs.close()
    graph.spin_until(lambda: not node.count_subscribers("camera/front"), what="the end of the subscription")


def test_simulated_time_that_has_not_begun_is_said(graph):
    inputs, node = make_inputs(graph, sim_time=True)
    robot = Robot(graph)
    graph.spin_until(lambda: robot.publish() or all(inputs.received.values()))
    fault = inputs.sample(node.get_clock().now().nanoseconds, 0).fault
    assert fault.reason is Reason.INPUT_CLOCK and "/clock" in fault.text
