"""Guards against: swapped colours, padding read as pixels, half images, and encodings guessed instead of refused."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from phyai_ros import image_bridge
from phyai_ros.images import ENCODINGS, check_compressed, decode_compressed, to_rgb

HEIGHT, WIDTH = 6, 5
RGB = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
ALPHA = np.full((HEIGHT, WIDTH, 1), 128, np.uint8)
GREY = RGB[:, :, :1]
SAME_PICTURE = {
    "rgb8": RGB,
    "bgr8": RGB[:, :, ::-1],
    "rgba8": np.concatenate([RGB, ALPHA], 2),
    "bgra8": np.concatenate([RGB[:, :, ::-1], ALPHA], 2),
}


def padded(pixels: np.ndarray, padding: int) -> tuple[int, bytes]:
    """Rows with `padding` bytes of 255 behind each: (step, data)."""
    rows = pixels.reshape(HEIGHT, -1)
    rows = np.concatenate([rows, np.full((HEIGHT, padding), 255, np.uint8)], 1)
    return rows.shape[1], rows.tobytes()


def make_message(encoding: str, pixels: np.ndarray, padding: int = 0) -> SimpleNamespace:
    step, data = padded(pixels, padding)
    size = {"height": HEIGHT, "width": WIDTH, "step": step}
    return SimpleNamespace(encoding=encoding, data=array("B", data), is_bigendian=0, **size)


@pytest.mark.parametrize("padding", [0, 1, 7])
@pytest.mark.parametrize("encoding", SAME_PICTURE)
def test_the_same_picture_in_any_encoding_is_the_same_rgb(encoding, padding):
    step, data = padded(SAME_PICTURE[encoding], padding)
    rgb = to_rgb(encoding, HEIGHT, WIDTH, step, data)
    assert rgb.dtype == np.uint8
    np.testing.assert_array_equal(rgb, RGB)


@pytest.mark.parametrize("padding", [0, 3])
def test_grey_becomes_three_equal_channels(padding):
    step, data = padded(GREY, padding)
    np.testing.assert_array_equal(to_rgb("mono8", HEIGHT, WIDTH, step, data), np.repeat(GREY, 3, 2))


def test_unpadded_rgb_is_not_copied():
    step, data = padded(RGB, 0)
    source = array("B", data)
    view = to_rgb("rgb8", HEIGHT, WIDTH, step, source)
    source[0] = 255 - source[0]
    assert view[0, 0, 0] == source[0]


def test_the_table_covers_what_is_promised():
    assert {"rgb8", "bgr8", "rgba8", "bgra8", "mono8"} <= set(ENCODINGS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"encoding": "nv24"}, "'nv24' is not supported; supported: rgb8, bgr8"),
        ({"encoding": "yuyv"}, "yuyv cannot have 5 x 6 pixels: odd sizes"),
        ({"step": 14}, "step 14 is shorter than a row of 5 rgb8 pixels"),
        ({"data": bytes(89)}, "89 bytes, less than step 15 x height 6 = 90"),
        ({"height": 0}, "empty"),
    ],
)
def test_what_cannot_be_an_image_is_refused_in_words(changes, sentence):
    header = {"encoding": "rgb8", "height": HEIGHT, "width": WIDTH, "step": 15, "data": bytes(90)}
    with pytest.raises(ValueError, match=sentence):
        to_rgb(**{**header, **changes})


def gradient() -> np.ndarray:
    """A smooth RGB picture that jpeg keeps well, red to the right, blue downwards."""
    red, blue = np.meshgrid(np.linspace(0, 255, 64), np.linspace(0, 255, 48))
    return np.stack([red, np.full_like(red, 60), blue], 2).astype(np.uint8)


def encode(suffix: str, rgb: np.ndarray) -> bytes:
    return cv2.imencode(suffix, cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))[1].tobytes()


@pytest.mark.parametrize("image_format", ["jpeg", "rgb8; jpeg compressed bgr8", "bgr8; jpeg compressed rgb8", ""])
def test_jpeg_gives_rgb_whatever_the_format_says_of_colour(image_format):
    rgb = decode_compressed(image_format, encode(".jpg", gradient()))
    assert np.abs(rgb.astype(int) - gradient()).mean() < 3


def test_png_is_exact_and_grey_files_get_three_channels():
    np.testing.assert_array_equal(decode_compressed("png", encode(".png", gradient())), gradient())
    grey = cv2.imencode(".png", gradient()[:, :, 0])[1].tobytes()
    np.testing.assert_array_equal(decode_compressed("mono8; png compressed", grey), gradient()[:, :, [0, 0, 0]])


@pytest.mark.parametrize("image_format", ["tiff", "16UC1; compressedDepth png", "h264"])
def test_other_formats_are_refused(image_format):
    with pytest.raises(ValueError, match="supported: jpeg, png"):
        check_compressed(image_format)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
def test_a_file_cut_short_is_refused(suffix, share):
    data = encode(suffix, gradient())
    with pytest.raises(ValueError, match="not a whole"):
        decode_compressed(suffix[1:], data[: int(len(data) * share)])


def test_messages_of_both_kinds_are_converted():
    np.testing.assert_array_equal(image_bridge.message_to_rgb(make_message("bgr8", SAME_PICTURE["bgr8"])), RGB)
    compressed = SimpleNamespace(format="png", data=array("B", encode(".png", RGB)))
    np.testing.assert_array_equal(image_bridge.message_to_rgb(compressed), RGB)


def test_an_encoding_that_only_cv_bridge_knows_goes_there(monkeypatch):
    class FakeBridge:
        def imgmsg_to_cv2(self, msg, encoding):
            return (msg.encoding, encoding)

    message = make_message("nv24", SAME_PICTURE["rgba8"])
    monkeypatch.setattr(image_bridge, "CvBridge", None)
    with pytest.raises(ValueError, match="'nv24' is not supported"):
        image_bridge.check_message(message)
    monkeypatch.setattr(image_bridge, "CvBridge", FakeBridge)
    image_bridge.check_message(message)
    assert image_bridge.message_to_rgb(message) == ("nv24", "rgb8")


@pytest.mark.skipif(
    image_bridge.CvBridge is None, reason="cv_bridge comes with a ROS installation, not with the wheels"
)
@pytest.mark.parametrize("encoding", [*SAME_PICTURE, "mono8"])
@pytest.mark.parametrize("padding", [0, 3])
def test_cv_bridge_and_our_converter_agree(encoding, padding):
    from sensor_msgs.msg import Image

    fake = make_message(encoding, SAME_PICTURE.get(encoding, GREY), padding)
    message = Image(**vars(fake))
    np.testing.assert_array_equal(image_bridge.bridge_to_rgb(message), image_bridge.message_to_rgb(message))
