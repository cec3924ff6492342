"""Controller outputs by name. A new output is one class in one module and one line here."""

from __future__ import annotations

from importlib import import_module

from phyai_ros.outputs.base import Output

OUTPUTS = {
    "joint_trajectory": "phyai_ros.outputs.joint_trajectory:JointTrajectoryOutput",
    "follow_joint_trajectory": "phyai_ros.outputs.follow_joint_trajectory:FollowJointTrajectoryOutput",
    "forward_command": "phyai_ros.outputs.forward_command:ForwardCommandOutput",
    "servo_joint_jog": "phyai_ros.outputs.servo:JointJogOutput",
    "servo_twist": "phyai_ros.outputs.servo:TwistOutput",
    "servo_pose": "phyai_ros.outputs.servo:PoseOutput",
    "gripper_command": "phyai_ros.outputs.gripper:GripperOutput",
    "parallel_gripper_command": "phyai_ros.outputs.gripper:ParallelGripperOutput",
}


def load_output(name: str) -> type[Output]:
    """The class behind an output name. Raises ValueError listing the names that exist."""
    if name not in OUTPUTS:
        raise ValueError(f"output.type: {name!r} is not an output; choose one of {', '.join(sorted(OUTPUTS))}.")
    module, class_name = OUTPUTS[name].split(":")
    return getattr(import_module(module), class_name)
