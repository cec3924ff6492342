"""A robot with one thing wrong: real publishers and a controller on a real graph, each detail of which may be bad."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from phyai_ros.messages import to_time
from phyai_ros.spinning import spin_until
from ros.fake_policy import JOINTS

CONTROLLER = "joint_trajectory_controller"
HOUR_S = 3600.0
Stamp = Callable[[int, int], int]  # (now, count of messages so far), ns -> stamp, ns


def age(seconds: float) -> Stamp:
    """Stamps that lie so far in the past."""
    return lambda now_ns, count: now_ns - round(seconds * 1e9)


class Workbench:
    """A ROS context and a thread that serves the nodes of all cases; use as a context manager."""

    def __enter__(self) -> Workbench:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.executor, self._stopping = SingleThreadedExecutor(context=self.context), threading.Event()
        self._thread = threading.Thread(target=spin_until, args=(self.executor, self._stopping))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self.executor.shutdown()
        rclpy.try_shutdown(context=self.context)

    def case(self) -> Case:
        return Case(self)


class Case:
    """The nodes of one case, gone at its end."""

    def __init__(self, bench: Workbench) -> None:
        self.context, self._bench, self._nodes = bench.context, bench, []

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            self._bench.executor.remove_node(node)

    def serve(self, node: Node) -> Node:
        self._nodes.append(node)
        self._bench.executor.add_node(node)
        return node


class FlawedRobot(Node):
    """Healthy without arguments. `images`, `joint_states` and `listens` switch parts off."""

    def __init__(self, case: Case, namespace: str, images: int = 1, joint_states: bool = True, **flaws: Any) -> None:
        super().__init__("robot", context=case.context, namespace=namespace)
        self._flaws, self._count, self._moment_ns = flaws, 0, self.get_clock().now().nanoseconds
        self._cameras = [self._make_camera() for _ in range(images)]
        self._joints = self._make_joints() if joint_states else None
        self._make_controller()
        self.create_timer(1.0 / flaws.get("camera_hz", 25.0), self._send_images)
        self.create_timer(0.02, self._send_joints)
        case.serve(self)

    def _make_camera(self) -> Any:
        reliability = ReliabilityPolicy[self._flaws.get("camera_qos", "RELIABLE")]
        kind = self._flaws.get("camera_kind", Image)
        return self.create_publisher(kind, "camera/front/image_raw", QoSProfile(depth=5, reliability=reliability))

    def _make_joints(self) -> Any:
        return self.create_publisher(self._flaws.get("joints_kind", JointState), "joint_states", 10)

    def _make_controller(self) -> None:
        kind = self._flaws.get("listens", JointTrajectory)
        if kind is not None:
            self.create_subscription(kind, f"{CONTROLLER}/joint_trajectory", lambda _: None, 10)
        if self._flaws.get("second_writer"):
            self.create_publisher(JointTrajectory, f"{CONTROLLER}/joint_trajectory", 10)

    def _send_images(self) -> None:
        now_ns = self.get_clock().now().nanoseconds
        stamp = self._flaws.get("camera_stamp", age(0.002))
        for index, publisher in enumerate(self._cameras):
            self._count += 1
            if publisher.msg_type is not Image:
                publisher.publish(CompressedImage(format="jpeg"))
                continue
            height, width = self._flaws.get("size", (8, 8))
            encoding = self._flaws.get("encoding", "rgb8")
            data = array("B", bytes(3 * height * width))
            message = Image(height=height, width=width, encoding=encoding, step=3 * width, data=data)
            lag_ns = index * 300_000_000  # a second driver is not in step with the first
            message.header.stamp = to_time(max(0, stamp(now_ns, self._count) - lag_ns))
            publisher.publish(message)

    def frozen(self, now_ns: int, count: int) -> int:
        return self._moment_ns

    def _send_joints(self) -> None:
        if self._joints is None:
            return
        if self._joints.msg_type is not JointState:
            self._joints.publish(String(data="joints"))
            return
        now_ns = self.get_clock().now().nanoseconds
        names = list(self._flaws.get("joint_names", JOINTS))
        message = JointState(name=names, position=self._flaws.get("position", [0.1] * len(names)))
        message.header.stamp = to_time(max(0, self._flaws.get("joint_stamp", age(0.0))(now_ns, 0)))
        self._joints.publish(message)


class Manager(Node):
    """A controller manager that lists `states` {controller: state}."""

    def __init__(self, case: Case, namespace: str, states: dict[str, str]) -> None:
        from controller_manager_msgs.srv import ListControllers

        super().__init__("controller_manager", context=case.context, namespace=namespace)
        self._states = states
        self.create_service(ListControllers, "controller_manager/list_controllers", self._list)
        case.serve(self)

    def _list(self, request: Any, response: Any) -> Any:
        from controller_manager_msgs.msg import ControllerState

        response.controller = [ControllerState(name=name, state=state) for name, state in self._states.items()]
        return response


class Controller(Node):
    """The parameters that a joint_trajectory_controller shows."""

    def __init__(self, case: Case, namespace: str, **parameters: Any) -> None:
        super().__init__(CONTROLLER, context=case.context, namespace=namespace)
        for name, value in {"joints": list(JOINTS), "cmd_timeout": 0.0, **parameters}.items():
            self.declare_parameter(name, value)
        case.serve(self)
