"""Camera messages as small PNG files for a browser."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_ros.image_bridge import message_to_rgb

LARGEST = 192  # pixels of the longer side
FASTEST = 1  # of zlib


def to_thumbnail(message: Any) -> bytes:
    """An Image or CompressedImage as PNG. Raises ValueError saying why it cannot be shown."""
    image = message_to_rgb(message)
    step = max(1, -(-max(image.shape[:2]) // LARGEST))
    return encode_png(np.ascontiguousarray(image[::step, ::step]))


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """RGB [h, w, 3] as a PNG file (PNG specification, third edition, sections 5 and 11)."""
    height, width, _ = image.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = image.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), FASTEST)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
