"""The one table of parameters: groups, names, types, defaults, units, bounds and descriptions.

Everything else is made from it: the ROS declaration, validation, config/policy.yaml and docs/reference/parameters.md.
A field named `x` in the group `g` is the ROS parameter `g.x`. No ROS and no torch here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from phyai_adapters import ADAPTERS
from phyai_ros.robot_settings import Collision, Controller, Limits, Output, Outputs, Start, Stop, Tracking
from phyai_ros.setting_types import (
    RELIABILITY,
    TOPIC,
    AdapterName,
    Angle,
    Core,
    Group,
    Pixel,
    Positive,
    Reliability,
    entry,
)


class Inference(Group):
    """The policy and how it is run."""

    adapter: AdapterName = entry(
        "flow_tiny", "Policy adapter, by its name in the adapter table", choices=tuple(ADAPTERS)
    )
    checkpoint: str = entry("", "Checkpoint file or folder; empty: the weights that ship with the package")
    device: str = entry("cpu", "Where the policy runs", allowed="cpu, cuda or cuda:N", pattern=r"^(cpu|cuda(:\d+)?)$")
    placement: Literal["thread", "process"] = entry(
        "thread",
        "thread: inference runs in a thread of the node; process: in a child process, which cannot delay the control "
        "thread and can be lost and restarted (~/reset)",
    )
    compile: bool = entry(False, "Fuse small operations with torch.compile (cuda; pi0 and pi0.5 are fused without)")
    kernel_profile: str = entry(
        "",
        "Folder of measured kernel times (phyai-ros profile); empty: the user's cache folder. Without a profile for "
        "this device the first kernel that can run is taken",
    )
    threads: int = entry(1, "CPU threads of one inference", ge=1, le=256)
    num_denoise_steps: int = entry(0, "Denoise steps per chunk; 0: as the policy was trained", ge=0, le=1000)
    seed: int = entry(0, "Seed of the noise; -1: a new one at each configure", ge=-1, le=2**31 - 1)
    warmup_runs: int = entry(3, "Inferences made while configuring, so that the first live one is fast", ge=0, le=100)
    inject_delay_s: float = entry(0.0, "Extra delay added to each inference, for experiments", "s", ge=0, le=10)
    hang_after_s: float = entry(10.0, "An inference that takes longer is reported as hung", "s", gt=0, le=3600)


class Rtc(Group):
    """Real-time chunking: how a new chunk continues the running one."""

    mode: Literal[
        "none", "identity", "fd", "fd_lagged", "hard", "ramp", "trained", "vjp", "blend", "ensemble", "sync", "instant"
    ] = entry(
        "identity",
        "none: chunks are swapped as they come; identity: guided by the rest of the running chunk; fd, fd_lagged, vjp: "
        "guided by a gradient, for one more forward per denoise step, a batch of two, or a backward pass; hard: frozen "
        "rows are painted in; ramp: rows start from the running chunk; trained: for checkpoints trained for it; blend: "
        "cross-fade over two ticks; ensemble: mean of all chunks; sync: the robot waits for each inference; "
        "instant: inference inside the control tick, for policies that take a millisecond and look every tick",
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
    qos: Reliability = entry("best_effort", RELIABILITY)
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
    joint_states_qos: Reliability = entry("best_effort", RELIABILITY)
    cloud_topics: tuple[str, ...] = entry(
        (), "Topics of sensor_msgs/PointCloud2, one for each point cloud that the policy declares, in its order"
    )
    cloud_qos: Reliability = entry("best_effort", RELIABILITY)
    max_age_s: float = entry(0.2, "Oldest header stamp used, against the ROS clock", "s", gt=0, le=60)
    slop_s: float = entry(0.1, "Largest spread between the header stamps of one observation", "s", gt=0, le=60)
    future_tolerance_s: float = entry(
        0.005, "How far a stamp may lie in the future (at least 0.05 s under use_sim_time)", "s", ge=0, le=10
    )
    zero_stamps: Literal["refuse", "arrival"] = entry(
        "refuse", "Messages without a stamp: refuse them, or use their arrival time"
    )


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
