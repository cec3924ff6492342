"""Image messages -> RGB: our converter, and a ROS installation's cv_bridge for the encodings ours does not have."""

from __future__ import annotations

from typing import Any

from phyai_ros.depth_images import DEPTH_BYTES, Metres, decode_depth, is_depth_format, read_depth, to_grey_rgb
from phyai_ros.images import ENCODINGS, Pixels, check_compressed, check_raw, decode_compressed, to_rgb

try:
    from cv_bridge import CvBridge
except (ImportError, AttributeError, SystemError):  # absent, or built for another numpy
    CvBridge = None


DepthRange = tuple[float, ...]  # near and far in metres; empty: not a depth camera
NO_RANGE = "is a depth image: set depth_range_m of this camera to [near, far]"


def check_message(msg: Any, depth_range_m: DepthRange = ()) -> None:
    """Raises ValueError where a sensor_msgs Image or CompressedImage cannot be decoded. Reads the header only."""
    if is_depth(msg):
        if not depth_range_m:
            raise ValueError(f"{getattr(msg, 'format', '') or msg.encoding} {NO_RANGE}")
    elif hasattr(msg, "format"):
        check_compressed(msg.format)
    elif msg.encoding in ENCODINGS or CvBridge is None:
        check_raw(msg.encoding, msg.height, msg.width, msg.step, len(msg.data))


def message_to_rgb(msg: Any, depth_range_m: DepthRange = ()) -> Pixels:
    """A sensor_msgs Image or CompressedImage -> uint8 RGB [h, w, 3]. Raises ValueError naming what is wrong."""
    if is_depth(msg):
        check_message(msg, depth_range_m)
        return to_grey_rgb(_depth_of(msg), *depth_range_m)
    if hasattr(msg, "format"):
        return decode_compressed(msg.format, msg.data)
    if msg.encoding in ENCODINGS or CvBridge is None:
        return to_rgb(msg.encoding, msg.height, msg.width, msg.step, msg.data, bool(msg.is_bigendian))
    return bridge_to_rgb(msg)


def is_depth(msg: Any) -> bool:
    """Whether the message holds distances and not colours."""
    return is_depth_format(msg.format) if hasattr(msg, "format") else msg.encoding in DEPTH_BYTES


def _depth_of(msg: Any) -> Metres:
    if hasattr(msg, "format"):
        return decode_depth(msg.format, msg.data)
    return read_depth(msg.encoding, msg.height, msg.width, msg.step, msg.data, bool(msg.is_bigendian))


def bridge_to_rgb(msg: Any) -> Pixels:
    """The same through cv_bridge. Raises ValueError where cv_bridge is absent or refuses the image."""
    if CvBridge is None:
        raise ValueError("cv_bridge is not installed; in a ROS installation: apt install ros-$ROS_DISTRO-cv-bridge")
    try:
        return CvBridge().imgmsg_to_cv2(msg, "rgb8")
    except (RuntimeError, TypeError) as error:  # CvBridgeError is a TypeError
        raise ValueError(f"cv_bridge cannot convert encoding {msg.encoding!r}: {error}") from error
