"""Parameters of the robot's side: outputs, controllers, limits, and what guards and stops the motion."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from phyai_ros.setting_types import TOPIC, Angle, Effort, Group, Jerk, Positive, entry


class Output(Group):
    """Where the actions go."""

    type: Literal[
        "joint_trajectory",
        "follow_joint_trajectory",
        "forward_command",
        "servo_joint_jog",
        "servo_twist",
        "servo_pose",
        "gripper_command",
        "parallel_gripper_command",
    ] = entry(
        "joint_trajectory",
        "joint_trajectory: a trajectory_msgs/JointTrajectory per chunk; follow_joint_trajectory: the same as goals; "
        "forward_command: a std_msgs/Float64MultiArray per step; servo_*: JointJog, TwistStamped or PoseStamped for "
        "moveit_servo; *gripper_command: goals of the gripper actions",
    )
    topic: str = entry("", "Command topic or action name; empty: the usual one of the type", **TOPIC)
    joints: tuple[str, ...] = entry(
        (), "The controller's joints in its order, prefix included; empty: as joints.names, or as the controller says"
    )
    rate_hz: float = entry(
        0.0, "Rate of streamed commands, interpolated between actions; 0: the policy's rate", "Hz", ge=0, le=1000
    )
    profile: Literal["auto", "splice", "replace"] = entry(
        "auto",
        "auto: chosen on activation from the controller's parameters; "
        "splice: only points ahead, fits every joint_trajectory_controller; replace: the whole chunk from its base on, "
        "for controllers up to Kilted with interpolate_from_desired_state false",
    )
    controller: str = entry("", "Name of the controller's node; empty: the topic without its last part", **TOPIC)
    stamp_lead_s: float = entry(
        0.01,
        "A trajectory starts so long after its tick: the longest way of a message to the controller",
        "s",
        ge=0,
        le=1,
    )
    frame: str = entry("", "frame_id of servo commands; empty: servo's own", allowed="text", pattern=r"^\S*$")
    max_effort: float = entry(0.0, "Effort of a gripper goal; 0: the controller's own", "N or Nm", ge=0, le=1000)


class Outputs(Group):
    """Several controllers driven by one policy, each with a group outputs.<key> like output; empty: only output."""

    keys: tuple[str, ...] = entry((), "Names of the outputs; each needs a group outputs.<key> that names its joints")
    by_key: dict[str, Output] = Field(default_factory=dict)


class Controller(Group):
    """Whose turn it is to move the robot: the controllers behind the outputs, in ros2_control."""

    ownership: Literal["none", "verify", "switch"] = entry(
        "none",
        "verify: activate only while all controllers are active; switch: activate them, in one strict call; both fall "
        "silent when a controller stops being active",
    )
    manager: str = entry("controller_manager", "Name of the controller manager", **TOPIC)
    replaces: tuple[str, ...] = entry((), "Controllers that switch deactivates, and activates again at the end")
    timeout_s: float = entry(2.0, "Longest wait for an answer of the controller or its manager", "s", gt=0, le=60)
    state_topic: str = entry(
        "",
        "control_msgs/JointTrajectoryControllerState of the controller, for example "
        "joint_trajectory_controller/controller_state: the first command continues its reference; empty: the measured "
        "position",
        **TOPIC,
    )


class Limits(Group):
    """Joint limits: one value for all joints, or one per joint in the order of joints.names.

    Of several sources the tightest counts. A chunk beyond them is made slower, then moved into the position bounds, and
    refused where that is not enough."""

    mode: Literal["limit", "refuse", "off"] = entry(
        "limit",
        "limit: slow a chunk down and shift it inside the limits; refuse: only chunks inside are executed; off: chunks "
        "run as they are, for simulation and comparisons (stops keep the limits all the same)",
    )
    max_velocity: tuple[Positive, ...] = entry((1.0,), "Largest joint velocity", "rad/s or m/s")
    max_acceleration: tuple[Positive, ...] = entry((5.0,), "Largest joint acceleration, braking included", "rad/s^2")
    max_jerk: tuple[Jerk, ...] = entry(
        (), "Largest joint jerk, of chunks and of the braking stop (needs ruckig); empty: not limited", "rad/s^3"
    )
    position_lower: tuple[Angle, ...] = entry(
        (), "Lowest joint position; empty: from the robot description", "rad or m"
    )
    position_upper: tuple[Angle, ...] = entry(
        (), "Highest joint position; empty: from the robot description", "rad or m"
    )
    max_slowdown: float = entry(3.0, "A chunk that had to run slower than this is refused", "times", ge=1, le=100)
    max_clip_rad: float = entry(
        0.1, "A chunk that had to be moved by more than this is refused", "rad or m", ge=0, le=10
    )
    robot_description: str = entry("", "Topic of the URDF (std_msgs/String, latched); empty: not used", **TOPIC)
    urdf_file: str = entry("", "URDF file; empty: not used")
    joint_limits_file: str = entry("", "joint_limits.yaml as MoveIt has it; empty: not used")


class Start(Group):
    """Guard of the first motion after activation, enable or reset."""

    mode: Literal["refuse", "ramp"] = entry(
        "refuse", "A first action far from the robot: refuse it, or go there slowly and then plan anew"
    )
    max_step_rad: float = entry(
        0.1, "So far from the measured joint position a first action may be", "rad or m", gt=0, le=10
    )
    ramp_velocity: float = entry(0.2, "Largest joint velocity of the ramp", "rad/s or m/s", gt=0, le=10)
    ramp_limit_rad: float = entry(1.0, "A first action further away than this is refused", "rad or m", gt=0, le=10)


class Tracking(Group):
    """Guard of the motion: a robot that does not follow is stopped, with the joint named."""

    max_error: tuple[Positive, ...] = entry(
        (),
        "Largest distance between command and measured position, one for all joints or one each; empty: not checked",
        "rad or m",
    )
    max_effort: tuple[Effort, ...] = entry((), "Largest measured effort; empty: not checked", "N or Nm")
    time_s: float = entry(0.3, "Only what lasts longer than this counts", "s", ge=0, le=60)


class Stop(Group):
    """Who may stop the robot, and how."""

    enable_timeout_s: float = entry(
        0.0, "~/enable has to be repeated within this time, as a deadman does; 0: it is heard once", "s", ge=0, le=60
    )
    estop_topic: str = entry("~/estop", "std_msgs/Bool; true latches until ~/clear_estop is called", **TOPIC)
    estop_stop: Literal["brake", "silence"] = entry(
        "brake", "brake: stop inside the limits, then silence; silence: at once, where hardware stops the robot"
    )


class Collision(Group):
    """Optional check of each chunk by MoveIt, at a low rate. It is no real-time check."""

    service: str = entry("", "moveit_msgs/GetStateValidity, for example check_state_validity; empty: not used", **TOPIC)
    group: str = entry("", "Planning group; empty: the whole robot")
    rate_hz: float = entry(5.0, "States of the running chunk that are asked about", "Hz", gt=0, le=100)


STREAMED = ("forward_command", "servo_joint_jog", "servo_twist", "servo_pose")  # outputs of one message per step
END_EFFECTOR = {"servo_twist": 6, "servo_pose": 7}  # outputs whose actions are no joints, and how many they take
ONE_JOINT = ("gripper_command",)
