"""Point clouds of ROS messages -> float32 [N, F], by numpy alone.

sensor_msgs_py gives the same where a message has no padded rows and the byte order of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phyai_core.types import CloudSpec, FloatArray

# sensor_msgs/PointField datatypes
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}


@dataclass(frozen=True)
class CloudView:
    """A PointCloud2 message, and what the policy wants of it."""

    topic: str
    msg: Any
    spec: CloudSpec

    def decode(self) -> FloatArray:
        """[N, F] as the policy gets it. Raises ValueError naming topic and fault."""
        try:
            return to_points(self.msg, self.spec)
        except ValueError as error:
            raise ValueError(f"{self.topic} cannot be used: {error}") from error


def check_cloud(msg: Any, spec: CloudSpec) -> None:
    """Raises ValueError where the message lacks a field or is shorter than it says. Reads the header only."""
    there = {field.name: field for field in msg.fields}
    missing = [name for name in spec.fields if name not in there]
    if missing:
        raise ValueError(f"it has no field {', '.join(missing)}, only {', '.join(there) or 'none'}")
    for name in spec.fields:
        field = there[name]
        if field.datatype not in TYPES or field.count > 1:
            raise ValueError(f"field {name} is no single number (datatype {field.datatype}, count {field.count})")
        if field.offset + np.dtype(TYPES[field.datatype]).itemsize > msg.point_step:
            raise ValueError(f"field {name} lies beyond a point of {msg.point_step} bytes")
    if msg.row_step < msg.width * msg.point_step or len(msg.data) < msg.height * msg.row_step:
        raise ValueError(f"{msg.width} x {msg.height} points do not fit into {len(msg.data)} bytes")


def to_points(msg: Any, spec: CloudSpec) -> FloatArray:
    """The fields [N, F] of the points that are finite, evenly thinned to `max_points`. Raises ValueError."""
    check_cloud(msg, spec)
    values = read_fields(msg, spec.fields)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) <= spec.max_points:
        return values
    return values[np.linspace(0, len(values) - 1, spec.max_points).round().astype(np.intp)]


def read_fields(msg: Any, names: tuple[str, ...]) -> FloatArray:
    """All points [height x width, F]: a view of the bytes, rows and points padded as the message says."""
    order, there = ">" if msg.is_bigendian else "<", {field.name: field for field in msg.fields}
    formats = [order + TYPES[there[name].datatype] for name in names]
    offsets = [there[name].offset for name in names]
    dtype = np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": msg.point_step})
    shape, strides = (msg.height, msg.width), (msg.row_step, msg.point_step)
    points = np.ndarray(shape, dtype, np.frombuffer(msg.data, np.uint8), strides=strides)
    return np.stack([points[name].astype(np.float32).reshape(-1) for name in names], axis=1)
