"""Encodings that cameras send beside plain RGB, and what a camera's settings make of the picture.

Guards against: mosaics, planes and byte orders taken for one another, depth shown as colour or in the wrong unit, a
calibration of another size, a crop before the turn, a stretched picture where a padded one was trained on.
"""

from __future__ import annotations

import struct
from array import array
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from phyai_core.types import CameraSpec
from phyai_ros.camera_view import CameraView, info_topic
from phyai_ros.image_bridge import check_message, message_to_rgb
from phyai_ros.images import ENCODINGS
from phyai_ros.settings import Camera

SIZE = 8
RED, GREEN, BLUE = COLOUR = (200, 90, 40)
SOLID = np.full((SIZE, SIZE, 3), COLOUR, np.uint8)


def message(encoding: str, pixels: np.ndarray, height: int = SIZE, width: int = SIZE, bigendian: int = 0):
    step = pixels.reshape(pixels.shape[0], -1).shape[1] * pixels.itemsize + 4  # four bytes of padding
    rows = np.pad(pixels.reshape(pixels.shape[0], -1).view(np.uint8), ((0, 0), (0, 4)), constant_values=77)
    data = array("B", rows.tobytes())
    return SimpleNamespace(encoding=encoding, height=height, width=width, step=step, data=data, is_bigendian=bigendian)


def mosaic(pattern: str) -> np.ndarray:
    samples = np.array([{"r": RED, "g": GREEN, "b": BLUE}[letter] for letter in pattern], np.uint8).reshape(2, 2)
    return np.tile(samples, (SIZE // 2, SIZE // 2))


def luma_and_chroma() -> tuple[int, int, int]:
    """The colour in the video range of BT.601, as cameras send it."""
    y = 16 + (65.738 * RED + 129.057 * GREEN + 25.064 * BLUE) / 256
    u = 128 + (-37.945 * RED - 74.494 * GREEN + 112.439 * BLUE) / 256
    v = 128 + (112.439 * RED - 94.154 * GREEN - 18.285 * BLUE) / 256
    return round(y), round(u), round(v)


def packed(order: str) -> np.ndarray:
    y, u, v = luma_and_chroma()
    pair = [{"y": y, "u": u, "v": v}[letter] for letter in order]
    return np.tile(np.array(pair, np.uint8), (SIZE, SIZE // 2))


def planes(chroma: str) -> np.ndarray:
    y, u, v = luma_and_chroma()
    below = np.tile(np.array([{"u": u, "v": v}[letter] for letter in chroma], np.uint8), (SIZE // 2, SIZE // 2))
    return np.vstack([np.full((SIZE, SIZE), y, np.uint8), below])


SAME_COLOUR = {
    "yuv422": packed("uyvy"),
    "uyvy": packed("uyvy"),
    "yuv422_yuy2": packed("yuyv"),
    "yuyv": packed("yuyv"),
    "nv12": planes("uv"),
    "nv21": planes("vu"),
    **{f"bayer_{pattern}8": mosaic(pattern) for pattern in ("rggb", "bggr", "gbrg", "grbg")},
}


@pytest.mark.parametrize("encoding", SAME_COLOUR)
def test_the_same_colour_in_any_encoding_of_cameras(encoding):
    rgb = message_to_rgb(message(encoding, SAME_COLOUR[encoding]))
    assert rgb.shape == (SIZE, SIZE, 3)
    inside = rgb[2:-2, 2:-2].astype(int)
    assert np.abs(inside - COLOUR).max() <= (0 if encoding.startswith("bayer") else 3)


@pytest.mark.parametrize("bigendian", [0, 1])
@pytest.mark.parametrize("encoding", ["mono16", "rgb16", "bgr16", "bayer_rggb16"])
def test_of_deep_samples_the_high_bits_are_kept_in_either_byte_order(encoding, bigendian):
    eight = {"mono16": SOLID[:, :, :1], "rgb16": SOLID, "bgr16": SOLID[:, :, ::-1], "bayer_rggb16": mosaic("rggb")}
    sixteen = (eight[encoding].astype(np.uint16) << 8) | 0x34
    pixels = np.ascontiguousarray(sixteen.astype(">u2" if bigendian else "<u2"))
    inside = message_to_rgb(message(encoding, pixels, bigendian=bigendian))[2:-2, 2:-2]
    np.testing.assert_array_equal(inside, np.full_like(inside, RED if encoding == "mono16" else COLOUR))


def test_every_encoding_of_the_table_is_tested():
    here = {*SAME_COLOUR, "mono16", "rgb16", "bgr16", *(f"bayer_{p}16" for p in ("rggb", "bggr", "gbrg", "grbg"))}
    assert set(ENCODINGS) == here | {"rgb8", "bgr8", "rgba8", "bgra8", "mono8"}


DEPTH_M = np.array([[0.5, 1.0], [1.5, np.nan]], np.float32)
GREY = np.array([[0, 128], [255, 255]], np.uint8)  # between 0.5 and 1.5 m


def depth_messages():
    millimetres = np.nan_to_num(DEPTH_M * 1000).astype(np.uint16)
    png = cv2.imencode(".png", millimetres)[1].tobytes()
    a, b = 100.0, 1.0
    quantised = np.where(np.isfinite(DEPTH_M), a / np.nan_to_num(DEPTH_M, nan=1.0) + b, 0).astype(np.uint16)
    inverse = cv2.imencode(".png", quantised)[1].tobytes()
    yield message("16UC1", millimetres, 2, 2)
    yield message("16UC1", millimetres.astype(">u2"), 2, 2, bigendian=1)
    yield message("32FC1", DEPTH_M, 2, 2)
    yield SimpleNamespace(format="16UC1; compressedDepth png", data=struct.pack("<iff", 0, 0, 0) + png)
    yield SimpleNamespace(format="32FC1; compressedDepth png", data=struct.pack("<iff", 0, a, b) + inverse)


@pytest.mark.parametrize("case", range(5))
def test_depth_is_shown_as_grey_between_near_and_far(case):
    rgb = message_to_rgb(list(depth_messages())[case], (0.5, 1.5))
    np.testing.assert_allclose(rgb[:, :, 0].astype(int), GREY, atol=2)
    np.testing.assert_array_equal(rgb[:, :, 0], rgb[:, :, 2])


def test_depth_without_a_range_is_refused_before_it_is_decoded():
    for msg in depth_messages():
        with pytest.raises(ValueError, match="set depth_range_m"):
            check_message(msg)
    with pytest.raises(ValueError, match="not a header and a 16-bit png"):
        message_to_rgb(SimpleNamespace(format="16UC1; compressedDepth png", data=b"short"), (0.5, 1.5))


def view(**settings) -> CameraView:
    return CameraView(Camera(topic="wrist/image_raw", **settings), CameraSpec("wrist", 4, 4))


def corners() -> np.ndarray:
    """4 x 8 pixels: red in the first row, green in the last column."""
    picture = np.zeros((4, 8, 3), np.uint8)
    picture[0, :, 0], picture[:, -1, 1] = 255, 255
    return picture


def test_turns_are_clockwise_and_come_before_the_crop():
    turned = view(rotate="90").apply(corners())
    assert turned.shape == (8, 4, 3)
    assert turned[:, -1, 0].min() == 255 and turned[-1, :, 1].min() == 255
    np.testing.assert_array_equal(view(rotate="90", crop=(3, 0, 1, 8)).apply(corners()), turned[:, 3:])
    np.testing.assert_array_equal(view(rotate="180").apply(corners()), corners()[::-1, ::-1])


@pytest.mark.parametrize(("resize", "bars"), [("stretch", 0), ("pad", 2), ("fill", 0)])
def test_how_the_size_of_the_policy_is_reached(resize, bars):
    bright = np.full((4, 8, 3), 255, np.uint8)
    bright[:, :2] = 60  # lost by fill, kept by the others
    seen = view(resize=resize).apply(bright)
    assert seen.shape == (4, 4, 3)
    assert (seen == 0).all(axis=(1, 2)).sum() == bars
    assert bool(seen[2].min() == 255) is (resize == "fill")


def test_without_settings_the_picture_is_the_policys_business():
    picture = corners()
    assert view().apply(picture) is picture and view().describe() == "as it is"
    words = view(rotate="90", crop=(3, 0, 1, 8), resize="pad", undistort=True).describe()
    assert words == "undistorted, turned by 90 degrees, cropped to 1 x 8 at 3, 0, padded to 4 x 4"


def test_a_crop_beyond_the_picture_is_refused():
    with pytest.raises(ValueError, match=r"crop \[6, 0, 4, 4\] reaches beyond the picture of 8 x 4"):
        view(crop=(6, 0, 4, 4)).apply(corners())


def calibration(model: str = "plumb_bob", strength: float = -0.3, size: int = 64):
    matrix = [50.0, 0, size / 2, 0, 50.0, size / 2, 0, 0, 1.0]
    projection = [50.0, 0, size / 2, 0, 0, 50.0, size / 2, 0, 0, 0, 1.0, 0]
    return SimpleNamespace(
        width=size, height=size, distortion_model=model, k=matrix, d=[strength, 0.0, 0.0, 0.0, 0.0], p=projection
    )


@pytest.mark.parametrize("model", ["plumb_bob", "equidistant"])
def test_a_straight_line_seen_bent_becomes_straight(model):
    info = calibration(model, -0.3 if model == "plumb_bob" else 0.1)
    line = np.array([[[x, -0.4, 1.0]] for x in np.linspace(-0.5, 0.5, 201)])
    matrix, distortion = np.reshape(info.k, (3, 3)), np.array(info.d)
    if model == "plumb_bob":
        seen, _ = cv2.projectPoints(line, np.zeros(3), np.zeros(3), matrix, distortion)
    else:
        seen, _ = cv2.fisheye.projectPoints(line, np.zeros(3), np.zeros(3), matrix, distortion[:4])
    picture = np.zeros((64, 64, 3), np.uint8)
    for x, y in seen.reshape(-1, 2).round().astype(int):
        picture[y, x] = 255
    rows = np.argwhere(view(undistort=True).apply(picture, info)[:, 12:52, 0] > 100)[:, 0]
    assert len(rows) > 20 and np.abs(rows - (32 - 0.4 * 50)).max() <= 1


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (calibration(size=32), "CameraInfo is for 32 x 32 pixels, the image has 64 x 64"),
        (calibration("mystery"), "distortion model 'mystery' is not supported"),
        (SimpleNamespace(**{**vars(calibration()), "k": [0.0] * 9}), "holds no calibration"),
    ],
)
def test_a_calibration_that_does_not_fit_is_refused(info, words):
    with pytest.raises(ValueError, match=words):
        view(undistort=True).apply(np.zeros((64, 64, 3), np.uint8), info)


def test_the_calibration_comes_from_beside_the_image_unless_told_otherwise():
    assert info_topic(Camera(topic="wrist/image_raw")) == "wrist/camera_info"
    assert info_topic(Camera(topic="image")) == "camera_info"
    assert info_topic(Camera(topic="wrist/image_raw", info_topic="calib")) == "calib"


def test_a_camera_to_be_undistorted_waits_for_its_calibration_by_name():
    from phyai_core.types import Feature, PolicySpec
    from phyai_ros.mailbox import Mailbox
    from phyai_ros.parameters import build_settings
    from phyai_ros.spec_checks import check_against_spec
    from ros.pipeline_rig import image_message, joint_message

    now_ns = 10**18
    joint = (Feature("a"),)
    spec = PolicySpec("one", 8, 0.04, (CameraSpec("front", 4, 4),), joint, joint, 1)
    values = {"cameras.keys": ["front"], "cameras.front.topic": "front/image_raw", "cameras.front.undistort": True}
    values["rtc.mode"] = "none"
    mailbox = Mailbox(check_against_spec(build_settings(values), spec), spec, lambda: now_ns)
    mailbox.receive_image("front", image_message("rgb8", 64, now_ns))
    mailbox.receive_joints(joint_message(["a"], [0.0], now_ns))
    assert mailbox.sample(now_ns, 0).fault.text == "no message yet on front/camera_info"
    mailbox.receive_info("front", calibration())
    assert mailbox.sample(now_ns, 0).obs.decode().images["front"].shape == (64, 64, 3)
