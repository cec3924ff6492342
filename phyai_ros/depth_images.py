"""Depth images -> uint8 RGB [h, w, 3] for policies that see depth as a grey picture: near is 0, far is 255.

Raw: 16UC1 in millimetres (0: no measurement), 32FC1 in metres (not finite: none). Compressed: what compressed_depth
image transport sends, a header of 12 bytes and a png, whose values for 32FC1 mean depth = a / (value - b). No
measurement shows as 255, as far away.
"""

from __future__ import annotations

import struct

import cv2
import numpy as np
from numpy.typing import NDArray

from phyai_ros.images import Pixels, check_rows, read_rows

DEPTH_BYTES = {"16UC1": 2, "32FC1": 4}
HEADER = struct.Struct("<iff")  # compression, a, b
Metres = NDArray[np.float32]


def is_depth_format(image_format: str) -> bool:
    """Whether a CompressedImage holds depth."""
    return "compresseddepth" in image_format.lower()


def read_depth(
    encoding: str, height: int, width: int, step: int, data: bytes | memoryview, is_bigendian: bool = False
) -> Metres:
    """Metres [h, w] of a raw depth image, NaN where nothing was measured. Raises ValueError naming what is wrong."""
    size = DEPTH_BYTES[encoding]
    check_rows(encoding, height, width, step, len(data), size)
    order = ">" if is_bigendian else "<"
    values = np.ascontiguousarray(read_rows(height, width, step, data, size)).view(
        f"{order}{'u2' if size == 2 else 'f4'}"
    )
    return _metres(values[:, :, 0]) if size == 2 else values[:, :, 0].astype(np.float32)


def decode_depth(image_format: str, data: bytes | memoryview) -> Metres:
    """The same of a compressed one; the format begins with the raw encoding, as in `32FC1; compressedDepth png`."""
    encoded = bytes(data)
    encoding = image_format.split(";")[0].strip() or "16UC1"
    if encoding not in DEPTH_BYTES:
        raise ValueError(f"depth of encoding {encoding!r} is not supported; supported: {', '.join(DEPTH_BYTES)}")
    picture = None
    if len(encoded) > HEADER.size:
        picture = cv2.imdecode(np.frombuffer(encoded, np.uint8, offset=HEADER.size), cv2.IMREAD_UNCHANGED)
    if picture is None or picture.ndim != 2 or picture.dtype != np.uint16:
        raise ValueError(f"{len(encoded)} bytes of format {image_format!r} are not a header and a 16-bit png image")
    if encoding == "16UC1":
        return _metres(picture)
    _, a, b = HEADER.unpack_from(encoded)
    values = picture.astype(np.float32)
    with np.errstate(divide="ignore"):
        return np.where(values > 0, a / (values - b), np.nan).astype(np.float32)


def to_grey_rgb(depth: Metres, near_m: float, far_m: float) -> Pixels:
    """Metres [h, w] -> [h, w, 3]."""
    share = np.clip((depth - near_m) / (far_m - near_m), 0.0, 1.0)
    grey = np.round(np.where(np.isfinite(depth), share, 1.0) * 255.0).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _metres(millimetres: NDArray[np.uint16]) -> Metres:
    return np.where(millimetres > 0, millimetres * np.float32(1e-3), np.nan).astype(np.float32)
