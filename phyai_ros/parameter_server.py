"""The parameter table on a ROS node: declared, described, read and guarded."""

from __future__ import annotations

from collections.abc import Iterable

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from phyai_ros.parameter_table import Parameter, parameter_table
from phyai_ros.parameters import ROS_OWN, build_settings, check_values, usable_keys
from phyai_ros.settings import KEYED, Settings


class ParameterServer:
    """Declares the table on a node. Values are judged when read, so a wrong one never keeps the node from starting."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._declare(parameter_table())
        node.add_on_set_parameters_callback(self._judge_change)

    def read(self) -> Settings:
        """The settings as they stand now. Raises ParameterError naming everything that is wrong."""
        keys = [usable_keys(self._node.get_parameter(f"{group}.keys").value) for group in KEYED]
        table = parameter_table(*keys)
        self._declare(table)
        # rclpy shows nothing of overrides for names that were never declared, such as misspelt ones, but keeps them.
        given = {name: parameter.value for name, parameter in self._node._parameter_overrides.items()}
        return build_settings({**given, **{row.name: self._node.get_parameter(row.name).value for row in table}})

    def _declare(self, rows: Iterable[Parameter]) -> None:
        for row in rows:
            if self._node.has_parameter(row.name):
                continue
            try:
                self._node.declare_parameter(row.name, row.default_as_ros, describe(row))
            except InvalidParameterValueException:  # out of range: keep it visible, `read` will say what is allowed
                self._node.declare_parameter(row.name, row.default_as_ros, describe(row, with_range=False))

    def _judge_change(self, changes: list[RosParameter]) -> SetParametersResult:
        """Refuse values that could never be right. A good one counts from the next configure on, where it is seen
        whether all of them fit together and fit the policy."""
        ours = {change.name: change.value for change in changes if self._is_ours(change.name)}
        problems = check_values({name: value for name, value in ours.items() if value is not None})
        if problems:
            return SetParametersResult(successful=False, reason=" ".join(map(str, problems)))
        return SetParametersResult(successful=True)

    def _is_ours(self, name: str) -> bool:
        """Declared already (while one is being declared its value is not judged), and not one that ROS put there."""
        return self._node.has_parameter(name) and name.split(".")[0] not in ROS_OWN


def describe(row: Parameter, with_range: bool = True) -> ParameterDescriptor:
    """What `ros2 param describe` shows. Types stay dynamic: launch files guess them, and `read` converts or refuses."""
    descriptor = ParameterDescriptor(
        name=row.name, description=row.description, additional_constraints=row.allowed, dynamic_typing=True
    )
    if not with_range or row.is_list or row.low is None:
        return descriptor
    if row.kind is int:
        descriptor.integer_range = [IntegerRange(from_value=int(row.low), to_value=int(row.high), step=1)]
    else:
        descriptor.floating_point_range = [FloatingPointRange(from_value=float(row.low), to_value=float(row.high))]
    return descriptor
