"""Controller outputs by name. A new output is one class in one module and one line here."""

from __future__ import annotations

from importlib import import_module

from phyai_ros.outputs.base import Output

OUTPUTS = {
    "joint_trajectory": "phyai_ros.outputs.joint_trajectory:JointTrajectoryOutput",
    "forward_command": "phyai_ros.outputs.forward_command:ForwardCommandOutput",
}


def load_output(name: str) -> type[Output]:
    """The class behind an output name. Raises ValueError listing the names that exist."""
    if name not in OUTPUTS:
        raise ValueError(f"output.type: {name!r} is not an output; choose one of {', '.join(sorted(OUTPUTS))}.")
    module, class_name = OUTPUTS[name].split(":")
    return getattr(import_module(module), class_name)
