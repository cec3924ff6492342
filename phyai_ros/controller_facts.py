"""What a live controller says of itself by its parameters, and what follows for the output before it.

Rules read in joint_trajectory_controller: up to Kilted a new trajectory replaces the running one at once; with
allow_trajectory_replacement (ros2_controllers 6.8 and later) it is spliced in. `interpolate_from_desired_state`
(Humble and Jazzy also call it `open_loop_control`) decides whether a replacing trajectory starts from the last command
or from the measured state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters

from phyai_ros.service_calls import ServiceCaller

FIELDS = {
    ParameterType.PARAMETER_BOOL: "bool_value",
    ParameterType.PARAMETER_INTEGER: "integer_value",
    ParameterType.PARAMETER_DOUBLE: "double_value",
    ParameterType.PARAMETER_STRING: "string_value",
    ParameterType.PARAMETER_STRING_ARRAY: "string_array_value",
}


@dataclass(frozen=True)
class ControllerFacts:
    """The parameters of a controller that matter here. `joints` are in its own order."""

    name: str
    joints: tuple[str, ...] = ()
    splices: bool = False
    starts_from_command: bool = False
    ends_with_velocity: bool = False
    cmd_timeout_s: float = 0.0
    tolerances: Mapping[str, float] = ()  # {joint: allowed path error, rad}, only those that are set

    @property
    def profile(self) -> str:
        """The publish style that is smooth on this controller."""
        return "splice" if self.splices or self.starts_from_command else "replace"

    def find_warnings(self, dt_s: float) -> list[str]:
        """What may surprise: each one sentence."""
        warnings = []
        if 0 < self.cmd_timeout_s < 2 * dt_s:
            warnings.append(f"{self.name}: cmd_timeout {self.cmd_timeout_s:g} s is shorter than two actions")
        tight = [f"{joint} {value:g}" for joint, value in dict(self.tolerances).items() if value < 0.05]
        if tight:
            text = f"{self.name}: a path tolerance below 0.05 ({', '.join(tight)}) makes it hold at a small lag"
            warnings.append(text)
        return warnings


def read_facts(caller: ServiceCaller, name: str, timeout_s: float) -> ControllerFacts:
    """Ask the controller's node. Raises ValueError when it does not answer."""
    listing = caller.call(ListParameters, f"{name}/list_parameters", ListParameters.Request(), timeout_s)
    known = [key for key in listing.result.names if _matters(key)]
    # Asking for a name that is not declared makes rclcpp withhold all others too.
    answer = caller.call(GetParameters, f"{name}/get_parameters", GetParameters.Request(names=known), timeout_s)
    return judge_parameters(name, dict(zip(known, map(to_python, answer.values), strict=True)))


def judge_parameters(name: str, values: Mapping[str, Any]) -> ControllerFacts:
    """Facts from {parameter: value}; None stands for a parameter that is not set."""
    desired = values.get("interpolate_from_desired_state") or values.get("open_loop_control")
    tolerances = {
        key.split(".")[1]: float(value)
        for key, value in values.items()
        if key.startswith("constraints.") and key.endswith(".trajectory") and value
    }
    return ControllerFacts(
        name=name,
        joints=tuple(values.get("joints") or ()),
        splices=bool(values.get("allow_trajectory_replacement")),
        starts_from_command=bool(desired),
        ends_with_velocity=bool(values.get("allow_nonzero_velocity_at_trajectory_end")),
        cmd_timeout_s=float(values.get("cmd_timeout") or 0.0),
        tolerances=tolerances,
    )


def order_joints(facts: ControllerFacts, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The controller's joints, which have to be exactly `wanted` in any order. Raises ValueError naming the others."""
    if not facts.joints or sorted(facts.joints) == sorted(wanted):
        return facts.joints or wanted
    lacking = [f"it does not have {name}" for name in wanted if name not in facts.joints]
    beyond = [f"nobody commands its {name}" for name in facts.joints if name not in wanted]
    raise ValueError(
        f"{facts.name} moves {', '.join(facts.joints)}, the policy {', '.join(wanted)}: "
        f"{'; '.join([*lacking, *beyond])}. Correct joints.names, output.joints or the controller."
    )


def to_python(value: ParameterValue) -> Any:
    """The value inside a parameter message; None where there is none of a kind used here."""
    field = FIELDS.get(value.type)
    return None if field is None else getattr(value, field)


def _matters(key: str) -> bool:
    names = ("joints", "interpolate_from_desired_state", "open_loop_control", "allow_trajectory_replacement")
    others = ("allow_nonzero_velocity_at_trajectory_end", "cmd_timeout")
    return key in (*names, *others) or (key.startswith("constraints.") and key.endswith(".trajectory"))
