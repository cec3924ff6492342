"""The one table of parameters: groups, names, types, defaults, units, bounds and descriptions.

Everything else is made from it: the ROS declaration, validation, config/policy.yaml and docs/reference/parameters.md.
A field named `x` in the group `g` is the ROS parameter `g.x`. No ROS and no torch here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, le=1000)]
Angle = Annotated[float, Field(ge=-1000, le=1000)]
Core = Annotated[int, Field(ge=0, le=1023)]
Jerk = Annotated[float, Field(gt=0, le=1e6)]
Effort = Annotated[float, Field(gt=0, le=1e5)]
Pixel = Annotated[int, Field(ge=0, le=16384)]
TOPIC = {"pattern": r"^([~/]?[A-Za-z_][\w/]*|~/[A-Za-z_][\w/]*)?$", "allowed": "a topic name"}

Reliability = Literal["best_effort", "reliable", "best_available"]


def entry(default: Any, description: str, unit: str = "", allowed: str = "", **bounds: Any) -> Any:
    """A parameter: default, description, unit and bounds (ge, gt, le, pattern); `allowed` puts a pattern into words."""
    return Field(default, description=description, json_schema_extra={"unit": unit, "allowed": allowed}, **bounds)


class Group(BaseModel):
    """Parameters that share the part of the name before the dot."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class Inference(Group):
    """The policy and how it is run."""

    adapter: str = entry(
        "flow_tiny", "Policy adapter, by its name in the adapter table", allowed="an adapter name", pattern=r"^\w+$"
    )
    checkpoint: str = entry("", "Checkpoint file or folder; empty: the weights that ship with the package")
    device: str = entry("cpu", "Where the policy runs", allowed="cpu, cuda or cuda:N", pattern=r"^(cpu|cuda(:\d+)?)$")
    placement: Literal["thread"] = entry("thread", "Inference runs in a thread of the node")
    threads: int = entry(1, "CPU threads of one inference", ge=1, le=256)
    num_denoise_steps: int = entry(0, "Denoise steps per chunk; 0: as the policy was trained", ge=0, le=1000)
    seed: int = entry(0, "Seed of the noise; -1: a new one at each configure", ge=-1, le=2**31 - 1)
    warmup_runs: int = entry(3, "Inferences made while configuring, so that the first live one is fast", ge=0, le=100)
    inject_delay_s: float = entry(0.0, "Extra delay added to each inference, for experiments", "s", ge=0, le=10)
    hang_after_s: float = entry(10.0, "An inference that takes longer is reported as hung", "s", gt=0, le=3600)


class Rtc(Group):
    """Real-time chunking: how a new chunk continues the running one."""

    mode: Literal[
        "none", "identity", "fd", "fd_lagged", "hard", "ramp", "trained", "vjp", "blend", "ensemble", "sync"
    ] = entry(
        "identity",
        "none: chunks are swapped as they come; identity: guided by the rest of the running chunk; fd, fd_lagged, vjp: "
        "guided by a gradient, for one more forward per denoise step, a batch of two, or a backward pass; hard: frozen "
        "rows are painted in; ramp: rows start from the running chunk; trained: for checkpoints trained for it; blend: "
        "cross-fade over two ticks; ensemble: mean of all chunks; sync: the robot waits for each inference",
    )
    execution_horizon: int = entry(
        0, "Ticks between two launches at least (s); 0: half the action horizon", "ticks", ge=0, le=1000
    )
    mask_ext: Literal["full"] | Annotated[int, Field(ge=0, le=1000)] = entry(
        "full", "Rows of the soft mask behind the frozen ones; full: up to H - s", "rows"
    )
    schedule: Literal["exp", "linear", "ones", "zeros"] = entry("exp", "How the soft mask falls from 1 to 0")
    max_guidance_weight: float = entry(
        0.0, "Upper limit of the guidance weight; 0: the number of denoise steps", ge=0, le=1000
    )
    exclude: tuple[str, ...] = entry((), "The policy's actions that are not conditioned, for example a gripper")
    obs_index_offset: int = entry(
        0, "Tick that row 0 of a chunk belongs to, counted from its observation, as in training", "ticks", ge=0, le=1
    )
    delay_window: int = entry(10, "Counted delays that the forecast of the inference delay uses", ge=1, le=1000)
    delay_quantile: float = entry(1.0, "Quantile of these delays taken as the forecast; 1: the largest", gt=0, le=1)
    delay_spike_ratio: float = entry(
        3.0, "A single delay more than so many times the next largest counts for one chunk only", ge=1, le=1000
    )
    delay_initial: int = entry(
        0, "Forecast before any delay was counted; 0: from the latency of the warm-up", "ticks", ge=0, le=1000
    )


class Executor(Group):
    """What happens when no action is left."""

    hold_limit_s: float = entry(0.2, "Longest hold before the braking stop", "s", ge=0, le=60)
    late_policy: Literal["consumed", "time"] = entry(
        "consumed",
        "Where a chunk enters that came after the last one had ended. consumed: at the count of actions emitted since "
        "its launch, where the robot stopped; time: at the row of the present tick, for what moves on meanwhile",
    )


class Camera(Group):
    """One camera, for each key in cameras.keys."""

    topic: str = entry("", "Image topic, relative to the namespace of the node; has to be set", **TOPIC)
    transport: Literal["raw", "compressed"] = entry(
        "raw", "raw: sensor_msgs/Image; compressed: sensor_msgs/CompressedImage (jpeg or png)"
    )
    qos: Reliability = entry("best_effort", "Reliability asked of the publisher")
    rotate: Literal["0", "90", "180", "270"] = entry("0", "Turn the image clockwise, in degrees; in quotes in YAML")
    undistort: bool = entry(False, "Undo the lens distortion by sensor_msgs/CameraInfo")
    info_topic: str = entry("", "Topic of the CameraInfo; empty: camera_info beside the image topic", **TOPIC)
    crop: tuple[Pixel, ...] = entry(
        (), "Part of the turned image that the policy sees: x, y, width, height; empty: all of it", "pixels"
    )
    depth_range_m: tuple[Positive, ...] = entry(
        (), "For depth images (16UC1, 32FC1, compressedDepth): near and far, shown as black and white", "m"
    )
    resize: Literal["policy", "stretch", "pad", "fill"] = entry(
        "policy",
        "How the policy's image size is reached. policy: by the policy itself; stretch: both sides separately; "
        "pad: the whole image, black bars; fill: the middle, edges cut off",
    )


class Cameras(Group):
    """Which topic feeds which camera of the policy."""

    keys: tuple[str, ...] = entry((), "The policy's camera keys; each needs a group cameras.<key>")
    by_key: dict[str, Camera] = Field(default_factory=dict)


class Joints(Group):
    """How joint names of the policy map to those of the robot."""

    names: tuple[str, ...] = entry((), "Robot joints in the policy's action order; empty: the policy's own names")
    prefix: str = entry("", "Put before each joint name, for example left_", allowed="text", pattern=r"^\S*$")
    scale: tuple[Angle, ...] = entry(
        (),
        "Robot position = scale x policy position + offset, one per joint or one for all; empty: 1; negative: mirrored",
    )
    offset: tuple[Angle, ...] = entry((), "See joints.scale; empty: 0", "rad or m")


class Inputs(Group):
    """Which messages make a valid observation."""

    joint_states_topic: str = entry(
        "joint_states", "Topic of sensor_msgs/JointState; several publishers are merged by joint name", **TOPIC
    )
    joint_states_qos: Reliability = entry("best_effort", "Reliability asked of the publisher")
    max_age_s: float = entry(0.2, "Oldest header stamp used, against the ROS clock", "s", gt=0, le=60)
    slop_s: float = entry(0.1, "Largest spread between the header stamps of one observation", "s", gt=0, le=60)
    future_tolerance_s: float = entry(
        0.005, "How far a stamp may lie in the future (at least 0.05 s under use_sim_time)", "s", ge=0, le=10
    )
    zero_stamps: Literal["refuse", "arrival"] = entry(
        "refuse", "Messages without a stamp: refuse them, or use their arrival time"
    )


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

    mode: Literal["limit", "refuse"] = entry(
        "limit", "limit: slow a chunk down and shift it inside the limits; refuse: only chunks inside are executed"
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


class Realtime(Group):
    """How punctual the control thread is. What the system does not permit is reported and left out."""

    priority: int = entry(0, "SCHED_FIFO priority of the control thread; 0: normal scheduling", ge=0, le=99)
    switch_interval_s: float = entry(1e-4, "Switch interval of the interpreter while active", "s", ge=1e-6, le=0.1)
    lock_memory: bool = entry(False, "Lock the memory of the process while active")
    affinity: tuple[Core, ...] = entry((), "CPU cores of the control thread; empty: any")


class Settings(Group):
    """All parameters of the policy node, validated and frozen."""

    inference: Inference = Inference()
    rtc: Rtc = Rtc()
    executor: Executor = Executor()
    cameras: Cameras = Cameras()
    joints: Joints = Joints()
    inputs: Inputs = Inputs()
    output: Output = Output()
    outputs: Outputs = Outputs()
    controller: Controller = Controller()
    limits: Limits = Limits()
    start: Start = Start()
    tracking: Tracking = Tracking()
    stop: Stop = Stop()
    collision: Collision = Collision()
    realtime: Realtime = Realtime()
    shadow: bool = entry(False, "Send to ~/shadow/ only, until ~/takeover; what the robot does instead is compared")
    require_enable: bool = entry(False, "Move only while ~/enable (std_msgs/Bool) is true")
    require_goal: bool = entry(False, "Move only while a goal of ~/run_policy is running")
    status_rate_hz: float = entry(10.0, "Rate of ~/status", "Hz", gt=0, le=100)
    prompt: str = entry("", "Task in words, until ~/prompt says another")


# Groups with one more level: <group>.keys names the members, each has the parameters of the model.
KEYED: dict[str, type[Group]] = {"cameras": Camera, "outputs": Output}
STREAMED = ("forward_command", "servo_joint_jog", "servo_twist", "servo_pose")  # outputs of one message per step
END_EFFECTOR = {"servo_twist": 6, "servo_pose": 7}  # outputs whose actions are no joints, and how many they take
ONE_JOINT = ("gripper_command",)
