"""From flat ROS parameter values to validated `Settings`, with one sentence per wrong parameter.

YAML and launch files guess types (1 for 1.0, 0483 for a name): values are converted where nothing is lost and refused,
with the fix, where something may be. No ROS and no torch here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from phyai_ros.parameter_table import Parameter, is_group, parameter_table
from phyai_ros.settings import KEYED, Settings

# Parameters that ROS itself puts on a node; never ours to judge.
_MEMBERS = {"cameras": "a camera", "outputs": "an output"}
ROS_OWN = ("use_sim_time", "start_type_description_service", "qos_overrides", "diagnostic_updater")


@dataclass(frozen=True)
class Problem:
    """One wrong parameter: what it is, what is allowed, how to fix it."""

    name: str
    value: Any
    allowed: str
    fix: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value!r} is not allowed. Allowed: {self.allowed}. Fix: {self.fix}."


class ParameterError(ValueError):
    """All wrong parameters at once, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def build_settings(values: Mapping[str, Any]) -> Settings:
    """Flat {dotted name: value as ROS gives it} -> Settings; a name left out, or None, takes its default.

    Raises ParameterError with every unknown name, wrong type, value out of bounds and contradiction at once.
    """
    given = {name: value for name, value in values.items() if value is not None and name.split(".")[0] not in ROS_OWN}
    keys = {group: usable_keys(given.get(f"{group}.keys")) for group in KEYED}
    table = {row.name: row for row in parameter_table(keys["cameras"], keys["outputs"])}
    settings, problems = _convert({name: value for name, value in given.items() if name in table}, table, keys)
    wrong = {problem.name for problem in problems}
    problems += [problem for problem in _contradictions(settings) if problem.name not in wrong]
    problems += [_unknown(name, given[name], table) for name in given if name not in table]
    if problems:
        raise ParameterError(sorted(problems, key=lambda problem: problem.name))
    return settings


def check_values(values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with each value by itself, whatever the other parameters say; unknown names are left out."""
    keys = {group: tuple({name.split(".")[1] for name in values if _is_member(name, group)}) for group in KEYED}
    table = {row.name: row for row in parameter_table(keys["cameras"], keys["outputs"])}
    return _convert({name: value for name, value in values.items() if name in table}, table, keys)[1]


def usable_keys(value: Any) -> tuple[str, ...]:
    """The usable entries of cameras.keys or outputs.keys, whatever type ROS gave it."""
    items = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else ()
    return tuple(dict.fromkeys(key for key in items if isinstance(key, str) and key))


def _convert(
    values: Mapping[str, Any], table: Mapping[str, Parameter], keys: Mapping[str, Iterable[str]]
) -> tuple[Settings, list[Problem]]:
    """Settings, with the default in place of each wrong value, and what is wrong with those."""
    tidy = {name: _tidy(value, table[name]) for name, value in values.items()}
    problems = list(filter(None, [_lossy(value, table[name]) for name, value in tidy.items()]))
    lossy = {problem.name for problem in problems}
    settings, wrong = _validate({name: value for name, value in tidy.items() if name not in lossy}, keys)
    return settings, problems + [_misfit(tidy[name], table[name]) for name in wrong]


def _validate(values: dict[str, Any], keys: Mapping[str, Iterable[str]]) -> tuple[Settings, list[str]]:
    """Settings, with the default in place of each value that is out of bounds, and the names of those."""
    try:
        return Settings.model_validate(_nest(values, keys)), []
    except ValidationError as error:
        wrong = list(dict.fromkeys(_dotted(detail["loc"]) for detail in error.errors()))
        rest = {name: value for name, value in values.items() if name not in wrong}
        return Settings.model_validate(_nest(rest, keys)), wrong


def _nest(values: Mapping[str, Any], keys: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    nested: dict[str, Any] = {group: {"by_key": {key: {} for key in members}} for group, members in keys.items()}
    for name, value in values.items():
        group, _, leaf = name.rpartition(".")
        keyed, _, key = group.partition(".")
        if key:
            nested[keyed]["by_key"][key][leaf] = value
        else:
            (nested.setdefault(group, {}) if group else nested)[leaf] = value
    return nested


def _is_member(name: str, group: str) -> bool:
    return name.startswith(f"{group}.") and name.count(".") == 2


def _dotted(loc: tuple[int | str, ...]) -> str:
    """Where pydantic found an error -> the parameter's name."""
    first, *rest = [str(part) for part in loc]
    if not is_group(Settings.model_fields[first].annotation):
        return first
    return ".".join([first, *rest[1:3]]) if rest[0] == "by_key" else f"{first}.{rest[0]}"


def _tidy(value: Any, row: Parameter) -> Any:
    if not row.is_list:
        return value
    items = list(value) if isinstance(value, (list, tuple, array)) else [value]
    return [] if items == [""] else items  # [''] is how an empty list gets through a launch file


def _lossy(value: Any, row: Parameter) -> Problem | None:
    """Refuse the conversions that lose what the user wrote: 0483 or 1e3 read as a number, true as 1."""
    entries = value if row.is_list else [value]
    if row.kind is str and not all(isinstance(entry, str) for entry in entries):
        fix = "put it in quotes in the YAML file; in a launch file wrap it in ParameterValue(..., value_type=str)"
        return Problem(row.name, value, row.allowed, fix)
    if row.kind in (int, float) and any(isinstance(entry, bool) for entry in entries):
        return _misfit(value, row)
    if row.kind in (int, float) and row.is_list and any(isinstance(entry, str) for entry in entries):
        numbers = ", ".join(map(str, entries))
        return Problem(row.name, value, f"{row.allowed}, and no text", f"write it without quotes: [{numbers}]")
    return None


def _misfit(value: Any, row: Parameter) -> Problem:
    near = get_close_matches(str(value), row.choices, n=1)
    fix = f"write {near[0]}" if near else f"set an allowed value, for example the default {row.default_as_ros!r}"
    return Problem(row.name, value, row.allowed, fix)


def _unknown(name: str, value: Any, table: Iterable[str]) -> Problem:
    prefix, _, leaf = name.rpartition(".")
    group, _, key = prefix.partition(".")
    if key and group in KEYED and leaf in KEYED[group].model_fields:
        fix = f"add {key!r} to {group}.keys, or correct the key"
        return Problem(name, value, f"settings of {_MEMBERS[group]} named in {group}.keys", fix)
    near = get_close_matches(name, table, n=1)
    fix = f"write {near[0]}, if that is meant" if near else "remove it (phyai-ros params lists all names)"
    return Problem(name, value, "names of this node's parameters only", fix)


def _contradictions(settings: Settings) -> Iterator[Problem]:
    lists = {"cameras.keys": settings.cameras.keys, "joints.names": settings.joints.names}
    lists["output.joints"] = settings.output.joints
    lists["outputs.keys"] = settings.outputs.keys
    for name, values in lists.items():
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice or "" in values:
            yield Problem(
                name, list(values), "each name once, none empty", f"remove {', '.join(twice) or 'the empty one'}"
            )
    for key, camera in settings.cameras.by_key.items():
        if not camera.topic:
            yield Problem(f"cameras.{key}.topic", "", "a topic name", f"set it to the topic of the camera {key!r}")
        if camera.crop and (len(camera.crop) != 4 or 0 in camera.crop[2:]):
            fix = "give four numbers, or none"
            yield Problem(f"cameras.{key}.crop", list(camera.crop), "x, y, width, height with sizes above 0", fix)
        if camera.depth_range_m and (
            len(camera.depth_range_m) != 2 or camera.depth_range_m[0] >= camera.depth_range_m[1]
        ):
            fix = "give two numbers, or none"
            yield Problem(
                f"cameras.{key}.depth_range_m", list(camera.depth_range_m), "near and far, in this order", fix
            )
    lower, upper = settings.limits.position_lower, settings.limits.position_upper
    if len(lower) == len(upper) and any(low >= high for low, high in zip(lower, upper, strict=True)):
        allowed = f"values below limits.position_upper {list(upper)}"
        yield Problem("limits.position_lower", list(lower), allowed, "correct the joint where lower is not below upper")
