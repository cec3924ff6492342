"""Images of ROS messages -> uint8 RGB [h, w, 3]. One table from encoding to handler; no ROS needed.

Encodings are those of sensor_msgs/image_encodings.hpp. A row may be padded: its length is `step` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Encoding:
    """Bytes per pixel in a row, and how a view [h, w, channels] of the message becomes RGB."""

    pixel_bytes: int
    convert: Callable[[Pixels], Pixels]


def _as_is(pixels: Pixels) -> Pixels:
    return pixels


def _by_opencv(code: int) -> Callable[[Pixels], Pixels]:
    def convert(pixels: Pixels) -> Pixels:
        return cv2.cvtColor(pixels, code)

    return convert


ENCODINGS: dict[str, Encoding] = {
    "rgb8": Encoding(3, _as_is),
    "bgr8": Encoding(3, _by_opencv(cv2.COLOR_BGR2RGB)),
    "rgba8": Encoding(4, _by_opencv(cv2.COLOR_RGBA2RGB)),
    "bgra8": Encoding(4, _by_opencv(cv2.COLOR_BGRA2RGB)),
    "mono8": Encoding(1, _by_opencv(cv2.COLOR_GRAY2RGB)),
}
COMPRESSED_FORMATS = ("jpeg", "jpg", "png")
JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"


def check_raw(encoding: str, height: int, width: int, step: int, size: int) -> None:
    """Raises ValueError where an image of `size` bytes cannot be what its header says. Cheap: no pixel is read."""
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding {encoding!r} is not supported; supported: {', '.join(ENCODINGS)}")
    row_bytes = width * ENCODINGS[encoding].pixel_bytes
    if height < 1 or width < 1:
        raise ValueError(f"the image is empty ({width} x {height} pixels)")
    if step < row_bytes:
        raise ValueError(f"step {step} is shorter than a row of {width} {encoding} pixels ({row_bytes} bytes)")
    if size < step * height:
        raise ValueError(f"data has {size} bytes, less than step {step} x height {height} = {step * height}")


def check_compressed(image_format: str) -> None:
    """Raises ValueError for a CompressedImage format that cannot be decoded. By convention an empty one means jpeg."""
    words = set(image_format.lower().replace(";", " ").split())
    if words and ("compresseddepth" in words or not words.intersection(COMPRESSED_FORMATS)):
        raise ValueError(f"compressed format {image_format!r} is not supported; supported: jpeg, png")


def to_rgb(
    encoding: str, height: int, width: int, step: int, data: bytes | memoryview, is_bigendian: bool = False
) -> Pixels:
    """Pixels of a sensor_msgs/Image -> uint8 [h, w, 3]; a view of `data` where it is unpadded rgb8 already.

    `is_bigendian` has no effect on 8-bit encodings. Raises ValueError naming what is wrong.
    """
    check_raw(encoding, height, width, step, len(data))
    pixel_bytes = ENCODINGS[encoding].pixel_bytes
    flat = np.frombuffer(data, np.uint8, count=step * height)
    rows = flat.reshape(height, step)[:, : width * pixel_bytes]  # a strided view: padding is skipped, not copied
    pixels = rows.reshape(height, width, pixel_bytes)
    return ENCODINGS[encoding].convert(pixels)


def decode_compressed(image_format: str, data: bytes | memoryview) -> Pixels:
    """A jpeg or png file -> uint8 [h, w, 3]. The decoder gives BGR whatever the format string says.

    Raises ValueError for other formats and for data that is no whole image.
    """
    check_compressed(image_format)
    encoded = bytes(data)
    # Up to OpenCV 4 the jpeg decoder fills a missing rest with grey and says nothing: look for the end marker first.
    cut_short = encoded.startswith(JPEG_START) and JPEG_END not in encoded
    bgr = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR) if encoded and not cut_short else None
    if bgr is None:
        raise ValueError(f"{len(encoded)} bytes of format {image_format!r} are not a whole jpeg or png image")
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
