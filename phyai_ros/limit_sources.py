"""Joint limits from where robots have them: URDF, joint_limits.yaml of MoveIt, our parameters. The tightest counts.

A joint that a file does not name, and a limit that it does not have, come from the other sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from phyai_core.limiter import JointLimits
from phyai_ros.settings import Limits

# {joint: {"velocity" | "acceleration" | "jerk" | "lower" | "upper": value}}
LimitTable = Mapping[str, Mapping[str, float]]


def resolve_limits(names: tuple[str, ...], limits: Limits, urdf: str = "") -> JointLimits:
    """The limits of the robot joints `names`; `limits` hold one value per joint. `urdf`: the robot description, if any.

    Raises ValueError naming the file or parameter that is wrong.
    """
    tables = [_from_parameters(names, limits)]
    if urdf:
        tables.append(read_urdf(urdf, "robot description"))
    if limits.urdf_file:
        tables.append(read_urdf(_read(limits.urdf_file, "limits.urdf_file"), limits.urdf_file))
    if limits.joint_limits_file:
        tables.append(read_joint_limits(_read(limits.joint_limits_file, "limits.joint_limits_file")))
    bounds = {kind: _tightest(names, tables, kind) for kind in ("velocity", "acceleration", "jerk", "lower", "upper")}
    crossed = [name for name, low, high in zip(names, bounds["lower"], bounds["upper"], strict=True) if low >= high]
    if crossed:
        raise ValueError(f"position limits of {', '.join(crossed)}: the sources together leave no room; correct them.")
    return JointLimits(names, **bounds)


def read_urdf(text: str, source: str) -> LimitTable:
    """Velocity and position limits of a URDF; continuous joints have no position limits."""
    try:
        robot = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{source} is not XML: {error}; a URDF is needed, expand xacro before.") from error
    table: dict[str, dict[str, float]] = {}
    for joint in robot.iter("joint"):
        limit = joint.find("limit")
        if limit is None:
            continue
        found = {"velocity": limit.get("velocity")}
        if joint.get("type") != "continuous":
            found |= {"lower": limit.get("lower"), "upper": limit.get("upper")}
        values = {kind: float(value) for kind, value in found.items() if value is not None}
        if values.get("velocity") == 0.0:
            del values["velocity"]  # many descriptions write 0 for unknown
        table[joint.get("name", "")] = values
    return table


def read_joint_limits(text: str) -> LimitTable:
    """MoveIt's joint_limits.yaml: a limit counts where its has_..._limits is true."""
    import yaml

    document = yaml.safe_load(text)
    joints = document.get("joint_limits") if isinstance(document, dict) else None
    if not isinstance(joints, dict):
        raise ValueError("limits.joint_limits_file: it has no entry joint_limits; a joint_limits.yaml is needed.")
    return {name: _moveit_entry(entry or {}) for name, entry in joints.items()}


def _moveit_entry(entry: Mapping[str, Any]) -> dict[str, float]:
    values = {
        kind: float(entry[f"max_{kind}"])
        for kind in ("velocity", "acceleration", "jerk")
        if entry.get(f"has_{kind}_limits") and f"max_{kind}" in entry
    }
    if entry.get("has_position_limits"):
        values |= {"lower": float(entry["min_position"]), "upper": float(entry["max_position"])}
    return values


def _from_parameters(names: tuple[str, ...], limits: Limits) -> LimitTable:
    columns = {
        "velocity": limits.max_velocity,
        "acceleration": limits.max_acceleration,
        "jerk": limits.max_jerk,
        "lower": limits.position_lower,
        "upper": limits.position_upper,
    }
    return {name: {kind: values[i] for kind, values in columns.items() if values} for i, name in enumerate(names)}


def _tightest(names: tuple[str, ...], tables: Iterable[LimitTable], kind: str) -> np.ndarray:
    loosest, choose = (-math.inf, max) if kind == "lower" else (math.inf, min)
    found = [[table[name][kind] for table in tables if kind in table.get(name, {})] for name in names]
    return np.array([choose(values, default=loosest) for values in found])


def _read(path: str, parameter: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ValueError(f"{parameter}: {path} cannot be read: {error.strerror}; correct the path.") from error
