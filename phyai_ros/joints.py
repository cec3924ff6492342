"""Joint states by name: which entries of which message make the policy's state vector. Nothing is ever filled in.

S state dims, A action dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import FloatArray, PolicySpec
from phyai_ros.joint_units import JointUnits
from phyai_ros.settings import Joints

FIELDS = ("position", "velocity", "effort")  # of sensor_msgs/JointState, and the kinds of a state feature


def robot_joint_names(joints: Joints, spec: PolicySpec) -> tuple[str, ...]:
    """Names on the robot of the policy's action joints, prefix included, in action order [A]."""
    own = joints.names or tuple(feature.name for feature in spec.action)
    return tuple(joints.prefix + name for name in own)


@dataclass(frozen=True)
class Route:
    """Where the values of one message field go: vector[to] = message.<field>[source]."""

    source: NDArray[np.intp]
    to: NDArray[np.intp]


@dataclass(frozen=True)
class Layout:
    """What one tuple of joint names, as a publisher sends it, contributes."""

    size: int
    joints: frozenset[str]  # the needed joints among them
    routes: dict[str, Route]  # {field: into the needed values}
    problem: str = ""


class JointMap:
    """Maps joint names of the robot to the state [S] and the measured positions [A] of a policy.

    All needed values form one vector: slot i is (robot joint, field) number i. Messages of several publishers are
    written into it by name, then state and measured positions are picked from it.
    """

    def __init__(
        self, spec: PolicySpec, joints: Joints, efforts: bool = False, joint_actions: Sequence[bool] = ()
    ) -> None:
        """`efforts`: the efforts of the action joints are needed too. `joint_actions` [A]: which actions are joints
        that joint_states names, all by default.

        Raises ValueError if the policy asks for a state of an unknown kind, or a command it does not give itself.
        """
        units = JointUnits.from_settings(joints, spec)
        self._units = units
        robot = dict(zip((f.name for f in spec.action), robot_joint_names(joints, spec), strict=True))
        slots: dict[tuple[str, str], int] = {}
        self._state_dim = spec.state_dim
        state_from: list[tuple[int, int]] = []  # (state index, slot)
        commands: list[tuple[int, int]] = []  # (state index, action index)
        for index, feature in enumerate(spec.state):
            if feature.kind == "command":
                commands.append((index, _action_index(spec, feature.name)))
                continue
            if feature.kind not in FIELDS:
                kinds = ", ".join((*FIELDS, "command"))
                raise ValueError(f"state {feature.name!r} of {spec.name} is of kind {feature.kind!r}; allowed: {kinds}")
            key = (robot.get(feature.name, joints.prefix + feature.name), feature.kind)
            state_from.append((index, slots.setdefault(key, len(slots))))
        is_joint = joint_actions or [True] * spec.action_dim
        named = [(i, name) for i, (name, ours) in enumerate(zip(robot.values(), is_joint, strict=True)) if ours]
        measured = [(i, slots.setdefault((name, "position"), len(slots))) for i, name in named]
        effort = [(i, slots.setdefault((name, "effort"), len(slots))) for i, name in named] if efforts else []
        self._slots = slots
        self._state_to, self._state_slot = _columns(state_from)
        self._command_to, self._command_from = _columns(commands)
        self._measured_to, self._measured_slot = _columns(measured)
        self._effort_to, self._effort_slot = _columns(effort)
        self._gain, self._shift = _state_units(spec, units)
        self.required = frozenset(name for name, _ in slots)

    def layout(self, names: Sequence[str]) -> Layout:
        """The contribution of messages with these names, in this order. Worked out once per publisher."""
        needed = [name for name in names if name in self.required]
        twice = sorted({name for name in needed if needed.count(name) > 1})
        problem = f"names {', '.join(twice)} twice" if twice else ""
        place = {name: position for position, name in enumerate(names)}
        routes = {}
        for field in FIELDS:
            slots = {name: slot for (name, kind), slot in self._slots.items() if kind == field}
            pairs = [(place[name], slot) for name, slot in slots.items() if name in place]
            if pairs:
                routes[field] = Route(*_columns(pairs))
        return Layout(len(names), frozenset(needed), routes, problem)

    def check(self, msg: Any, layout: Layout) -> str:
        """What is wrong with a JointState, naming joint and field, or an empty text."""
        if layout.problem:
            return layout.problem
        for field, route in layout.routes.items():
            values = getattr(msg, field)
            if len(values) != layout.size:
                needed = f"the policy needs the {field} of {', '.join(self._joint(slot) for slot in route.to)}"
                return f"has {len(values)} {field} values for {layout.size} joints; {needed}"
            wrong = ~np.isfinite(np.asarray(values)[route.source])
            if wrong.any():
                first = wrong.argmax()
                return f"has the {field} {values[route.source[first]]} for the joint {self._joint(route.to[first])}"
        return ""

    def collect(self, messages: Sequence[tuple[Any, Layout]]) -> NDArray[np.float64]:
        """All needed values, from checked messages, oldest first: a later one wins for the joints it names."""
        values = np.full(len(self._slots), np.nan)
        for msg, layout in messages:
            for field, route in layout.routes.items():
                values[route.to] = np.asarray(getattr(msg, field))[route.source]
        return values

    def measured(self, values: NDArray[np.float64]) -> FloatArray:
        """Measured joint positions in action order [A], robot units, float32; 0 for actions that are no joints."""
        measured = np.zeros(len(self._units.scale), np.float32)
        measured[self._measured_to] = values[self._measured_slot]
        return measured

    def effort(self, values: NDArray[np.float64]) -> FloatArray | None:
        """Measured efforts in action order [A], where they were asked for."""
        if not len(self._effort_to):
            return None
        effort = np.zeros(len(self._units.scale), np.float32)
        effort[self._effort_to] = values[self._effort_slot]
        return effort

    def to_policy(self, command: FloatArray) -> FloatArray:
        """A command [A] in robot units as the policy counts."""
        return self._units.to_policy(command)

    def state(self, values: NDArray[np.float64], last_command: FloatArray) -> FloatArray:
        """The policy's state [S] in its units, float32; `last_command` [A] fills the features of kind command."""
        state = np.empty(self._state_dim, np.float32)
        state[self._state_to] = values[self._state_slot]
        state[self._command_to] = last_command[self._command_from]
        return (state - self._shift) / self._gain

    def _joint(self, slot: int) -> str:
        return next(name for (name, _), value in self._slots.items() if value == slot)


def _state_units(spec: PolicySpec, units: JointUnits) -> tuple[FloatArray, FloatArray]:
    """Gain and shift [S] of the state: robot = gain * policy + shift. Effort goes the other way: power is the same."""
    gain, shift = np.ones(spec.state_dim, np.float32), np.zeros(spec.state_dim, np.float32)
    actions = [feature.name for feature in spec.action]
    for index, feature in enumerate(spec.state):
        if feature.name not in actions:
            continue
        scale, offset = units.scale[actions.index(feature.name)], units.offset[actions.index(feature.name)]
        gain[index] = 1.0 / scale if feature.kind == "effort" else scale
        shift[index] = offset if feature.kind in ("position", "command") else 0.0
    return gain, shift


def _action_index(spec: PolicySpec, name: str) -> int:
    names = [feature.name for feature in spec.action]
    if name not in names:
        raise ValueError(f"state {name!r} of {spec.name} is a last command, but its actions are {', '.join(names)}")
    return names.index(name)


def _columns(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    table = np.array(pairs, np.intp).reshape(-1, 2)
    return table[:, 0], table[:, 1]
