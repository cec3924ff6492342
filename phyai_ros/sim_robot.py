"""The simulated robot as a ROS node: sensors, controller and task of the built-in scene, in real time.

Publishes joint_states (100 Hz) and camera/front/image_raw (25 Hz), stamped with the instant they show; follows
joint_trajectory_controller/joint_trajectory or forward_position_controller/commands, whichever controller is active;
supervises episodes through policy/enable and policy/status, and reports them as JSON on ~/episode.
"""

from __future__ import annotations

import json
import sys
import threading
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import rclpy
from numpy.typing import NDArray
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from phyai_core.clock import SteadyClock
from phyai_ros.control_loop import ControlLoop
from phyai_ros.messages import to_time
from phyai_ros.msg import PolicyStatus
from phyai_ros.ros_clock import RosClock, to_stamp_ns
from phyai_ros.sim.arm import JOINTS, PHYSICS_DT_S
from phyai_ros.sim.camera import CameraThread
from phyai_ros.sim.controllers import Trajectory
from phyai_ros.sim.robot import CONTROLLERS, ControllerConfig, RobotWorld
from phyai_ros.sim.scene import Scene, Snapshot
from phyai_ros.sim.supervisor import Supervisor
from phyai_ros.spinning import make_executor, spin_until, stop_on_signals

FRAME = "front_camera"
CLOCK_LEAP_S = 1.0  # /clock going ahead by more is a jump, not a slow machine
SLOW_FACTOR = 0.95
BELT_END_M = 0.4

PARAMETERS = {
    "controller": (CONTROLLERS[0], f"Active controller: {' or '.join(CONTROLLERS)}"),
    "jtc_family": ("replace", "joint_trajectory_controller: replace (up to Kilted) or splice (Rolling, since 2026)"),
    "interpolate_from_desired_state": (True, "A new trajectory starts from the last command, not the measured state"),
    "episodes": (0, "Episodes to run; 0: without end"),
    "exit_when_finished": (False, "After the last episode the process ends, with exit code 0"),
    "seed": (0, "Seed of the first episode; the next one adds 1"),
    "puck_y": (float("nan"), "Where the puck starts on the belt, m; nan: drawn for each episode"),
    "image_width": (64, "Width of the camera image, pixels"),
    "image_height": (64, "Height of the camera image, pixels"),
}
BOUNDS = {"episodes": (0, 10**6), "seed": (0, 2**31), "image_width": (16, 1280), "image_height": (16, 960)}


class SimRobot(Node):
    """Raises ValueError for a wrong parameter, RuntimeError where this machine cannot render.

    `on_finished` is called after the last episode, where the parameters ask for that, perhaps more than once.
    """

    def __init__(self, on_finished: Callable[[], None] = lambda: None, **kwargs: Any) -> None:
        super().__init__("sim_robot", **kwargs)
        given = {name: self._declare(name, *row) for name, row in PARAMETERS.items()}
        check_parameters(given)
        self._on_finished = on_finished if given["exit_when_finished"] else lambda: None
        self._slow_told = False
        with ExitStack() as made:
            made.callback(self.destroy_node)
            self._make_publishers()
            scene = Scene()
            made.callback(scene.close)
            self._camera = CameraThread(scene, given["image_height"], given["image_width"], self._publish_image)
            made.callback(self._camera.close)
            controller = ControllerConfig(
                given["controller"], given["jtc_family"], given["interpolate_from_desired_state"]
            )
            self._world = RobotWorld(scene, controller, self._publish_joints, self._tick, self._log_rejection)
            self._supervisor = self._make_supervisor(given)
            self._camera.start()
            self._subscribe()
            loop = self._make_loop(made)
            made.callback(loop.stop)
            loop.start()
            self._made = made.pop_all()

    def close(self) -> None:
        """Stop the world and free everything."""
        self._made.close()

    def _declare(self, name: str, default: Any, description: str) -> Any:
        return self.declare_parameter(name, default, ParameterDescriptor(description=description)).value

    def _make_publishers(self) -> None:
        latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._joints = self.create_publisher(JointState, "joint_states", 10)
        self._images = self.create_publisher(Image, "camera/front/image_raw", 5)
        self._enable = self.create_publisher(Bool, "policy/enable", QoSProfile(depth=1, durability=latched.durability))
        self._episodes = self.create_publisher(String, "~/episode", latched)

    def _subscribe(self) -> None:
        self.create_subscription(JointTrajectory, f"{CONTROLLERS[0]}/joint_trajectory", self._follow, 10)
        self.create_subscription(Float64MultiArray, f"{CONTROLLERS[1]}/commands", self._command, 10)
        self.create_subscription(PolicyStatus, "policy/status", lambda m: self._supervisor.note_status(m.state), 10)

    def _make_supervisor(self, given: dict[str, Any]) -> Supervisor:
        return Supervisor(
            self._world,
            send_enable=lambda enabled: self._enable.publish(Bool(data=enabled)),
            send_report=self._publish_report,
            policy_listens=lambda: self._enable.get_subscription_count() > 0,
            episodes=given["episodes"],
            seed=given["seed"],
            puck_y_m=None if np.isnan(given["puck_y"]) else given["puck_y"],
        )

    def _make_loop(self, made: ExitStack) -> ControlLoop:
        clock, leap_s = SteadyClock(), None
        if self.get_clock().ros_time_is_active:
            clock, leap_s = RosClock(self.get_clock()), CLOCK_LEAP_S
            made.callback(clock.close)
        return ControlLoop(
            PHYSICS_DT_S,
            lambda k, missed, deadline_ns, _: self._world.run_steps(
                k, missed, to_stamp_ns(self.get_clock(), deadline_ns)
            ),
            clock,
            on_error=lambda error: self.get_logger().error(f"a step failed: {type(error).__name__}: {error}"),
            on_jump=lambda _: self._world.hold(),
            leap_s=leap_s,
        )

    # --- commands, in the executor's thread --------------------------------------------------------------------------

    def _follow(self, message: JointTrajectory) -> None:
        try:
            trajectory = Trajectory.from_message(message)
        except ValueError as error:
            self._world.reject(str(error))
        else:
            self._world.follow(trajectory, self.get_clock().now().nanoseconds)

    def _command(self, message: Float64MultiArray) -> None:
        self._world.command(np.array(message.data, dtype=float))

    def _log_rejection(self, reason: str) -> None:
        self.get_logger().warning(f"command rejected: {reason}")

    # --- sensors and episodes, in the loop's and the camera's threads ------------------------------------------------

    def _tick(self, snapshot: Snapshot, stamp_ns: int) -> None:
        self._camera.offer(snapshot, stamp_ns)
        self._supervisor.tick(snapshot, stamp_ns)
        if self._supervisor.is_over:
            self._on_finished()

    def _publish_joints(self, snapshot: Snapshot, stamp_ns: int) -> None:
        self._joints.publish(to_joint_state(snapshot, stamp_ns))

    def _publish_image(self, image: NDArray[np.uint8], stamp_ns: int) -> None:
        self._images.publish(to_image(image, stamp_ns))

    def _publish_report(self, report: dict[str, Any]) -> None:
        self._episodes.publish(String(data=json.dumps(report)))
        if report["outcome"] == "running":
            return
        self.get_logger().info(
            f"episode {report['episode']}: {report['outcome']} after {report['duration_s']:.2f} s,"
            f" {report['successes']} successes so far"
        )
        if report["real_time_factor"] < SLOW_FACTOR and not self._slow_told:
            self._slow_told = True
            self.get_logger().warning(
                f"this machine is too slow for the simulation: real_time_factor: {report['real_time_factor']:.2f}"
            )


def check_parameters(given: dict[str, Any]) -> None:
    """Raises ValueError with name, value and what is allowed."""
    for name, (lowest, highest) in BOUNDS.items():
        if not lowest <= given[name] <= highest:
            raise ValueError(f"{name}: {given[name]} is out of bounds; choose a value from {lowest} to {highest}.")
    if abs(given["puck_y"]) > BELT_END_M:
        raise ValueError(f"puck_y: {given['puck_y']} is off the belt; choose a value from -0.4 to 0.4, or nan.")


def to_joint_state(snapshot: Snapshot, stamp_ns: int) -> JointState:
    """Positions and velocities of all five joints."""
    message = JointState(name=list(JOINTS))
    message.header.stamp = to_time(stamp_ns)
    message.position, message.velocity = array("d", snapshot.positions), array("d", snapshot.velocities)
    return message


def to_image(image: NDArray[np.uint8], stamp_ns: int) -> Image:
    """An RGB picture [h, w, 3]."""
    height, width, channels = image.shape
    message = Image(height=height, width=width, encoding="rgb8", step=width * channels)
    message.header.stamp, message.header.frame_id = to_time(stamp_ns), FRAME
    message.data = array("B", image.tobytes())  # anything else is checked element by element
    return message


def main(args: list[str] | None = None) -> int:
    """Run until SIGINT, SIGTERM or the end of the episodes. Exit code 0, or 1 with a sentence when it cannot start."""
    stopping = threading.Event()
    stop_on_signals(stopping)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = SimRobot(on_finished=stopping.set)
    except (ValueError, RuntimeError) as error:
        print(f"sim_robot: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 1
    executor = make_executor()
    executor.add_node(node)
    try:
        spin_until(executor, stopping)
    finally:
        executor.shutdown()
        node.close()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
