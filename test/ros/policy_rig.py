"""A policy node in this process between a fake robot and a listener, on a ROS domain of its own."""

from __future__ import annotations

import math
import threading
import time
from array import array

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

import phyai_adapters
from phyai_ros.msg import ActionChunk, ControlTiming, PolicyStatus
from phyai_ros.policy_node import PolicyNode
from phyai_ros.spinning import make_executor, spin_until
from ros.fake_policy import JOINTS, FakePolicy, Misbehaviour
from ros.graph import Domain

TIMEOUT_S = 60.0  # only a test that fails waits so long
PARAMETERS = {
    "inference.adapter": "fake",
    "inference.warmup_runs": 1,
    "cameras.keys": ["front"],
    "cameras.front.topic": "camera/front/image_raw",
    "rtc.execution_horizon": 6,
    "output.profile": "splice",
    "limits.max_velocity": [2.0],
    "limits.max_acceleration": [4.0],
    "inputs.max_age_s": 0.4,
}
LISTENED = {
    "status": (PolicyStatus, "policy/status"),
    "chunk": (ActionChunk, "policy/chunk"),
    "timing": (ControlTiming, "policy/timing"),
    "command": (JointState, "policy/command"),
    "diagnostics": (DiagnosticArray, "/diagnostics"),
    "trajectory": (JointTrajectory, "joint_trajectory_controller/joint_trajectory"),
    "forward": (Float64MultiArray, "forward_position_controller/commands"),
}


class FakeRobot(Node):
    """Publishes joints and a camera, keeps every message of the policy node, follows commands at once."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("fake_robot", context=context)
        self.heard: dict[str, list] = {name: [] for name in LISTENED}
        for name, (kind, topic) in LISTENED.items():
            self.create_subscription(kind, topic, self.heard[name].append, 50)
        self.joints = list(JOINTS)
        self.position = [0.3, -0.2]
        self.camera_on = self.joints_on = True
        self._joint_states = self.create_publisher(JointState, "joint_states", 10)
        self._images = self.create_publisher(Image, "camera/front/image_raw", 10)
        self.enable = self.create_publisher(Bool, "policy/enable", 1)
        self.prompt = self.create_publisher(String, "policy/prompt", 1)
        self.reset = self.create_client(Trigger, "policy/reset")
        self.create_timer(0.01, self._publish_joints)
        self.create_timer(0.04, self._publish_image)

    def _publish_joints(self) -> None:
        if not self.joints_on:
            return
        still = [0.0] * len(self.joints)
        message = JointState(name=self.joints, position=self.position[: len(self.joints)], velocity=still)
        message.header.stamp = self.get_clock().now().to_msg()
        self._joint_states.publish(message)

    def _publish_image(self) -> None:
        if not self.camera_on:
            return
        message = Image(height=8, width=8, encoding="rgb8", step=24, data=array("B", bytes(192)))
        message.header.stamp = self.get_clock().now().to_msg()
        self._images.publish(message)

    @property
    def status(self) -> PolicyStatus | None:
        return self.heard["status"][-1] if self.heard["status"] else None


class PolicyRig:
    """Use as a context manager. `configure`, ... are the node's own transitions. A parameter None is left out."""

    def __init__(self, node_namespace: str = "", **parameters) -> None:
        self._namespace = node_namespace
        self.misbehaviour = FakePolicy.misbehaviour = Misbehaviour()
        self._stopping = threading.Event()
        given = {**PARAMETERS, **parameters}
        self._parameters = {name: value for name, value in given.items() if value is not None}

    def __enter__(self) -> PolicyRig:
        phyai_adapters.ADAPTERS["fake"] = "ros.fake_policy:FakePolicy"
        self.context = rclpy.Context()
        self._domain = Domain()  # whatever else runs on this machine is not heard
        rclpy.init(context=self.context, domain_id=self._domain.number)
        overrides = [Parameter(name, value=value) for name, value in self._parameters.items()]
        self.node = PolicyNode(context=self.context, namespace=self._namespace, parameter_overrides=overrides)
        self.robot = FakeRobot(self.context)
        self._executors = [make_executor(self.context), SingleThreadedExecutor(context=self.context)]
        self._threads, self._helpers = [], []
        for executor, node in zip(self._executors, (self.node, self.robot), strict=True):
            executor.add_node(node)
            self._threads.append(threading.Thread(target=spin_until, args=(executor, self._stopping)))
            self._threads[-1].start()
        return self

    def __exit__(self, *_) -> None:
        self.misbehaviour.go_on.set()
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        self.node.stop()
        for executor in self._executors:
            executor.shutdown()
        self.node.destroy_node()
        for node in (self.robot, *self._helpers):
            node.destroy_node()
        rclpy.try_shutdown(context=self.context)
        self._domain.close()
        del phyai_adapters.ADAPTERS["fake"]

    def serve(self, node: Node) -> None:
        """Let another node take part, in the robot's thread, until the end."""
        self._helpers.append(node)
        self._executors[1].add_node(node)

    def start(self) -> PolicyRig:
        """Configure, activate and wait for the first status."""
        assert self.node.trigger_configure().name == "SUCCESS"
        return self.activate()

    def activate(self) -> PolicyRig:
        self.robot.heard["status"].clear()
        assert self.node.trigger_activate().name == "SUCCESS"
        self.wait(lambda: self.robot.status is not None, "first status")
        return self

    def wait(self, predicate, what: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not predicate():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s; last status {self.robot.status}"
            time.sleep(0.005)

    def wait_for_state(self, state: str, reason: str = "") -> PolicyStatus:
        """The first status from now on with this state (and reason)."""
        seen = len(self.robot.heard["status"])

        def find():
            news = self.robot.heard["status"][seen:]
            return next((s for s in news if s.state == state and reason in ("", s.reason)), None)

        self.wait(lambda: find() is not None, f"state {state} {reason}")
        return find()

    def wait_for_news(self, name: str, count: int = 1) -> None:
        seen = len(self.robot.heard[name])
        self.wait(lambda: len(self.robot.heard[name]) >= seen + count, f"{count} more of {name}")


def is_braking(trajectory: JointTrajectory) -> bool:
    """Ends at rest, everything finite."""
    numbers = [x for point in trajectory.points for x in (*point.positions, *point.velocities)]
    return all(map(math.isfinite, numbers)) and not any(trajectory.points[-1].velocities)
