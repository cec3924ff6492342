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
    """Bytes per pixel in a row, and how the rows of the message [rows, w, bytes] become RGB.

    `halves`: rows in halves of the image height, 3 for planes of half the height below the picture. `deep`: a sample
    has two bytes, whose order the message tells. `even`: width, and for planes height, must be even.
    """

    pixel_bytes: int
    convert: Callable[[Pixels], Pixels]
    halves: int = 2
    deep: bool = False
    even: bool = False


def _as_is(pixels: Pixels) -> Pixels:
    return pixels


def _by_opencv(code: int) -> Callable[[Pixels], Pixels]:
    def convert(pixels: Pixels) -> Pixels:
        return cv2.cvtColor(pixels, code)

    return convert


def _grey(pixels: Pixels) -> Pixels:
    return cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)


def _eight_bits(convert: Callable[[Pixels], Pixels]) -> Callable[[Pixels], Pixels]:
    """Take the high byte of each sample [h, w, 2 c], high byte first, and go on with those."""
    return lambda pixels: convert(np.ascontiguousarray(pixels[:, :, ::2]))


# OpenCV names a mosaic by its second row's second and third sample: rggb is its BG.
_BAYER = {
    "bayer_rggb": cv2.COLOR_BayerBG2RGB,
    "bayer_bggr": cv2.COLOR_BayerRG2RGB,
    "bayer_gbrg": cv2.COLOR_BayerGR2RGB,
    "bayer_grbg": cv2.COLOR_BayerGB2RGB,
}
_UYVY = Encoding(2, _by_opencv(cv2.COLOR_YUV2RGB_UYVY), even=True)
_YUYV = Encoding(2, _by_opencv(cv2.COLOR_YUV2RGB_YUYV), even=True)

ENCODINGS: dict[str, Encoding] = {
    "rgb8": Encoding(3, _as_is),
    "bgr8": Encoding(3, _by_opencv(cv2.COLOR_BGR2RGB)),
    "rgba8": Encoding(4, _by_opencv(cv2.COLOR_RGBA2RGB)),
    "bgra8": Encoding(4, _by_opencv(cv2.COLOR_BGRA2RGB)),
    "mono8": Encoding(1, _grey),
    "mono16": Encoding(2, _eight_bits(_grey), deep=True),
    "rgb16": Encoding(6, _eight_bits(_as_is), deep=True),
    "bgr16": Encoding(6, _eight_bits(_by_opencv(cv2.COLOR_BGR2RGB)), deep=True),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    "nv12": Encoding(1, _by_opencv(cv2.COLOR_YUV2RGB_NV12), halves=3, even=True),
    "nv21": Encoding(1, _by_opencv(cv2.COLOR_YUV2RGB_NV21), halves=3, even=True),
    **{f"{name}8": Encoding(1, _by_opencv(code)) for name, code in _BAYER.items()},
    **{f"{name}16": Encoding(2, _eight_bits(_by_opencv(code)), deep=True) for name, code in _BAYER.items()},
}
COMPRESSED_FORMATS = ("jpeg", "jpg", "png")
JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"


def check_raw(encoding: str, height: int, width: int, step: int, size: int) -> None:
    """Raises ValueError where an image of `size` bytes cannot be what its header says. Cheap: no pixel is read."""
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding {encoding!r} is not supported; supported: {', '.join(ENCODINGS)}")
    entry = ENCODINGS[encoding]
    if entry.even and (width % 2 or (entry.halves == 3 and height % 2)):
        raise ValueError(f"an image of encoding {encoding} cannot have {width} x {height} pixels: odd sizes do not fit")
    check_rows(encoding, height, width, step, size, entry.pixel_bytes, entry.halves)


def check_rows(encoding: str, height: int, width: int, step: int, size: int, pixel_bytes: int, halves: int = 2) -> None:
    """Raises ValueError where step or size do not fit the pixels."""
    row_bytes, rows = width * pixel_bytes, height * halves // 2
    if height < 1 or width < 1:
        raise ValueError(f"the image is empty ({width} x {height} pixels)")
    if step < row_bytes:
        raise ValueError(f"step {step} is shorter than a row of {width} {encoding} pixels ({row_bytes} bytes)")
    if size < step * rows:
        raise ValueError(f"data has {size} bytes, less than step {step} x height {rows} = {step * rows}")


def check_compressed(image_format: str) -> None:
    """Raises ValueError for a CompressedImage format that cannot be decoded. By convention an empty one means jpeg."""
    words = set(image_format.lower().replace(";", " ").split())
    if words and ("compresseddepth" in words or not words.intersection(COMPRESSED_FORMATS)):
        raise ValueError(f"compressed format {image_format!r} is not supported; supported: jpeg, png")


def to_rgb(
    encoding: str, height: int, width: int, step: int, data: bytes | memoryview, is_bigendian: bool = False
) -> Pixels:
    """Pixels of a sensor_msgs/Image -> uint8 [h, w, 3]; a view of `data` where it is unpadded rgb8 already.

    `is_bigendian` has no effect on 8-bit encodings; of deeper ones the high bits are kept. Raises ValueError naming
    what is wrong.
    """
    check_raw(encoding, height, width, step, len(data))
    entry = ENCODINGS[encoding]
    pixels = read_rows(height * entry.halves // 2, width, step, data, entry.pixel_bytes)
    if entry.deep and not is_bigendian:
        pixels = pixels[:, :, 1:]  # the high byte comes second; every other byte is taken from there
    return entry.convert(pixels)


def read_rows(rows: int, width: int, step: int, data: bytes | memoryview, pixel_bytes: int) -> Pixels:
    """A strided view [rows, w, bytes]: padding is skipped, not copied."""
    flat = np.frombuffer(data, np.uint8, count=step * rows)
    return flat.reshape(rows, step)[:, : width * pixel_bytes].reshape(rows, width, pixel_bytes)


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
