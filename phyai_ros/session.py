"""What a policy node owns between configure and cleanup, made and dropped as a whole."""

from __future__ import annotations

from contextlib import ExitStack

from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String

from phyai_core.clock import NS_PER_S, SteadyClock
from phyai_core.timekeeping import Timekeeper
from phyai_core.types import Reason
from phyai_ros.assembly import (
    build_executor,
    build_motion,
    build_output,
    check_latency,
    load_policy,
    place_inference,
)
from phyai_ros.collision_check import CollisionCheck
from phyai_ros.control_loop import ControlLoop
from phyai_ros.controller_state import ControllerState
from phyai_ros.controls import Controls
from phyai_ros.inference_process import InferenceProcess
from phyai_ros.inference_thread import InferenceThread
from phyai_ros.inputs import Inputs
from phyai_ros.joints import robot_joint_names
from phyai_ros.metadata import publish_metadata
from phyai_ros.motion_guard import MotionGuard
from phyai_ros.output_adaptation import adapt_output, controller_names
from phyai_ros.outputs.channels import shadow_channels
from phyai_ros.ownership import Ownership
from phyai_ros.pipeline import Pipeline
from phyai_ros.realtime import RealtimeScope
from phyai_ros.reporting import Reporter
from phyai_ros.ros_clock import RosClock, to_stamp_ns
from phyai_ros.run_policy import PolicyAction
from phyai_ros.service_calls import ServiceCaller
from phyai_ros.settings import Settings
from phyai_ros.supervision import Rules

BRAKING_TIMEOUT_S = 3.0
CLOCK_LEAP_S = 1.0  # /clock going ahead by more is a jump, not a late tick


class Session:
    """Policy, inputs, executor and output of one configuration. Raises ValueError for what the user can mend."""

    def __init__(self, node: LifecycleNode, settings: Settings) -> None:
        self._node = node
        self._running: ExitStack | None = None
        with ExitStack() as made:
            self._policy = policy = load_policy(settings, node.get_logger().info)
            made.callback(policy.close)
            self._settings, self._spec = policy.settings, policy.spec
            motion = build_motion(policy, self._read_robot_description())
            self._executor = build_executor(policy, motion=motion)
            self._inputs = Inputs(node, self._settings, self._spec)
            made.callback(self._inputs.close)
            self._output = build_output(node, policy)
            made.callback(self._output.close)
            joint_names = list(robot_joint_names(self._settings.joints, self._spec))
            mode = self._settings.rtc.mode
            self._timekeeper = Timekeeper(self._spec, self._settings.rtc.execution_horizon)
            self._reporter = Reporter(
                node, self._spec, self._executor, self._inputs, joint_names, mode, self._timekeeper
            )
            made.callback(self._reporter.close)
            metadata = publish_metadata(node, self._settings, self._spec, joint_names)
            made.callback(node.destroy_publisher, metadata)
            self._controller_state = self._watch_controller_state(made)
            self._pipeline = self._make_pipeline(motion)
            self._reporter.pipeline = self._pipeline
            controls = Controls(
                node, self._settings, self._inputs, self._pipeline, self._is_active, self._restart_inference
            )
            made.callback(controls.close)
            names = {name.rpartition("/")[2] for name in controller_names(self._settings).values()}
            self._ownership = Ownership(node, self._settings.controller, sorted(names), self._pipeline.own)
            self._action = PolicyAction(node, self._pipeline, controls.set_prompt, self._is_active)
            made.callback(self._action.close)
            self._collision = self._make_collision_check(made)
            self._made = made.pop_all()
        self._loop: ControlLoop | None = None

    def _is_active(self) -> bool:
        return self._running is not None

    def _restart_inference(self) -> None:
        """Bring back a child that was lost."""
        self._inference.restart()

    def _read_robot_description(self) -> str:
        topic = self._settings.limits.robot_description
        if not topic:
            return ""
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        with ServiceCaller(self._node) as caller:
            return caller.receive(String, topic, latched, self._settings.controller.timeout_s).data

    def _make_collision_check(self, made: ExitStack) -> CollisionCheck | None:
        if not self._settings.collision.service:
            return None
        names = robot_joint_names(self._settings.joints, self._spec)
        check = CollisionCheck(self._node, self._settings.collision, names, self._pipeline)
        made.callback(check.close)
        return check

    def _watch_controller_state(self, made: ExitStack) -> ControllerState | None:
        topic = self._settings.controller.state_topic
        if not topic:
            return None
        names = robot_joint_names(self._settings.joints, self._spec)
        state = ControllerState(self._node, topic, names, self._settings.start.max_step_rad)
        made.callback(state.close)
        return state

    def _make_pipeline(self, motion: MotionGuard) -> Pipeline:
        stop = self._settings.stop
        return Pipeline(
            self._executor,
            self._inputs,
            self._output,
            self._timekeeper,
            ros_now_ns=lambda: self._node.get_clock().now().nanoseconds,
            on_command=self._reporter.report_command,
            on_chunk=self._reporter.report_chunk,
            motion=motion,
            rules=Rules(
                self._settings.require_enable,
                stop.enable_timeout_s,
                stop.estop_stop == "silence",
                self._settings.require_goal,
            ),
            seed_position=self._controller_state.seed if self._controller_state else lambda measured: measured,
            shadow=shadow_channels(self._output),
        )

    def activate(self) -> None:
        """Start the threads and begin to publish. On an error everything started is stopped again.

        Raises ValueError when the warm-up was too slow for the execution horizon.
        """
        check_latency(self._policy)
        with ExitStack() as running:
            self._ownership.acquire()
            running.callback(self._ownership.release)
            remarks = adapt_output(self._node, self._output, self._settings)
            self._pipeline.begin()
            realtime = RealtimeScope(self._settings.realtime)
            running.callback(realtime.close)
            self._reporter.warnings = realtime.warnings  # the control thread adds to them
            realtime.warnings.update({f"controller_{i}": remark for i, remark in enumerate(remarks)})
            self._inference = place_inference(self._executor, self._policy, self._node.get_logger().warning)
            running.callback(self._join_inference, self._inference)
            self._inference.start()
            self._loop = self._make_loop(running, realtime)
            steady = Clock(clock_type=ClockType.STEADY_TIME)
            timer = self._node.create_timer(1.0 / self._settings.status_rate_hz, self._report_status, clock=steady)
            running.callback(self._node.destroy_timer, timer)
            if self._collision is not None:
                rate_hz = self._settings.collision.rate_hz
                asking = self._node.create_timer(1.0 / rate_hz, self._collision.ask, clock=steady)
                running.callback(self._node.destroy_timer, asking)
            self._loop.start()
            self._running = running.pop_all()

    def _make_loop(self, running: ExitStack, realtime: RealtimeScope) -> ControlLoop:
        clock, leap_s = SteadyClock(), None
        if self._node.get_clock().ros_time_is_active:
            clock, leap_s = RosClock(self._node.get_clock()), CLOCK_LEAP_S
            running.callback(clock.close)
        loop = ControlLoop(
            self._spec.dt_s,
            self._tick,
            clock,
            sub_ticks=self._output.sub_ticks,
            on_sub_tick=self._sub_tick if self._output.sub_ticks > 1 else None,
            on_error=self._pipeline.fail_tick,
            on_jump=self._handle_jump,
            prepare=realtime.enter_control_thread,
            leap_s=leap_s,
        )
        running.callback(self._stop_loop, loop)
        return loop

    def _tick(self, k: int, missed: int, deadline_ns: int, wake_ns: int) -> None:
        self._pipeline.tick(k, missed, self._to_stamp(deadline_ns), (wake_ns - deadline_ns) / NS_PER_S)

    def _sub_tick(self, k: int, fraction: float, deadline_ns: int) -> None:
        self._pipeline.sub_tick(fraction, self._to_stamp(deadline_ns))

    def _to_stamp(self, deadline_ns: int) -> int:
        return to_stamp_ns(self._node.get_clock(), deadline_ns)

    def _handle_jump(self, delta_ns: int) -> None:
        self._inputs.clear()
        self._pipeline.reset(Reason.CLOCK_JUMP, f"/clock jumped by {delta_ns / NS_PER_S:.2f} s")

    def _report_status(self) -> None:
        if self._collision is not None:
            self._reporter.set_warning("collision", "; ".join(self._collision.warnings))
        status = self._reporter.publish_status(self._pipeline.record, self._loop.tick_errors_s, self._inputs.prompt)
        self._action.follow(status, self._reporter.last_timing)

    def deactivate(self) -> None:
        """Brake, wait for rest, fall silent. Does nothing when not active."""
        running, self._running = self._running, None
        if running is None:
            return
        self._pipeline.close()
        if not self._pipeline.rested.wait(BRAKING_TIMEOUT_S):
            self._node.get_logger().warning(f"not at rest {BRAKING_TIMEOUT_S:g} s after the stop was sent")
        running.close()
        self._action.abandon("the node was deactivated")
        self._reporter.publish_end("deactivated")

    def close(self) -> None:
        """Deactivate if needed and free everything."""
        self.deactivate()
        self._made.close()

    def _stop_loop(self, loop: ControlLoop) -> None:
        if not loop.stop():
            self._node.get_logger().error("the control loop did not end in time")

    def _join_inference(self, inference: InferenceThread | InferenceProcess) -> None:
        if not inference.stop():
            self._node.get_logger().error("an inference is still running; its result will be dropped")
