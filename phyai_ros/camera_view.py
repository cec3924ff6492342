"""From the picture of a camera to what the policy sees of it: undistorted, turned, cropped, resized, in this order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np

from phyai_core.types import CameraSpec
from phyai_ros.images import Pixels
from phyai_ros.settings import Camera

TURNS = {"90": cv2.ROTATE_90_CLOCKWISE, "180": cv2.ROTATE_180, "270": cv2.ROTATE_90_COUNTERCLOCKWISE}
RESIZED = {"policy": "", "stretch": "stretched {}", "pad": "padded {}", "fill": "cut {}"}
FISHEYE = ("equidistant", "fisheye")
MODELS = ("plumb_bob", "rational_polynomial", "", *FISHEYE)


def info_topic(camera: Camera) -> str:
    """Where the CameraInfo of a camera comes from: by convention beside its image."""
    return camera.info_topic or "/".join([*camera.topic.split("/")[:-1], "camera_info"])


@dataclass
class CameraView:
    """One camera of a policy. Used by the inference thread only: it keeps the map of the last calibration."""

    settings: Camera
    spec: CameraSpec
    _maps: tuple[tuple, Any, Any] | None = field(default=None, repr=False)

    def apply(self, rgb: Pixels, info: Any | None = None) -> Pixels:
        """[h, w, 3] -> what the policy gets. `info`: CameraInfo, where the camera has to be undistorted.

        Raises ValueError where the calibration is for another size or the crop reaches beyond the picture.
        """
        if self.settings.undistort:
            rgb = self._undistort(rgb, info)
        if self.settings.rotate != "0":
            rgb = cv2.rotate(rgb, TURNS[self.settings.rotate])
        if self.settings.crop:
            rgb = self._crop(rgb)
        return self._resize(rgb)

    def describe(self) -> str:
        """What is done before the policy sees a picture, in words."""
        settings = self.settings
        x_y_w_h = settings.crop
        steps = [
            "undistorted" if settings.undistort else "",
            f"turned by {settings.rotate} degrees" if settings.rotate != "0" else "",
            f"cropped to {x_y_w_h[2]} x {x_y_w_h[3]} at {x_y_w_h[0]}, {x_y_w_h[1]}" if x_y_w_h else "",
            RESIZED[settings.resize].format(f"to {self.spec.width} x {self.spec.height}"),
        ]
        return ", ".join(filter(None, steps)) or "as it is"

    def _undistort(self, rgb: Pixels, info: Any) -> Pixels:
        key = (info.width, info.height, info.distortion_model, *info.k, *info.d, *info.p)
        if (info.width, info.height) != (rgb.shape[1], rgb.shape[0]):
            size = f"{info.width} x {info.height}"
            raise ValueError(f"CameraInfo is for {size} pixels, the image has {rgb.shape[1]} x {rgb.shape[0]}")
        if self._maps is None or self._maps[0] != key:
            self._maps = (key, *_make_maps(info))
        return cv2.remap(rgb, self._maps[1], self._maps[2], cv2.INTER_LINEAR)

    def _crop(self, rgb: Pixels) -> Pixels:
        x, y, width, height = self.settings.crop
        if x + width > rgb.shape[1] or y + height > rgb.shape[0]:
            crop = f"crop {list(self.settings.crop)}"
            raise ValueError(f"{crop} reaches beyond the picture of {rgb.shape[1]} x {rgb.shape[0]} pixels")
        return rgb[y : y + height, x : x + width]

    def _resize(self, rgb: Pixels) -> Pixels:
        wanted = (self.spec.width, self.spec.height)
        if self.settings.resize == "policy" or (rgb.shape[1], rgb.shape[0]) == wanted:
            return rgb
        if self.settings.resize == "stretch":
            return _scale(rgb, wanted)
        ratios = (wanted[0] / rgb.shape[1], wanted[1] / rgb.shape[0])
        ratio = min(ratios) if self.settings.resize == "pad" else max(ratios)
        size = tuple(max(1, round(length * ratio)) for length in (rgb.shape[1], rgb.shape[0]))
        return _fit(_scale(rgb, size), wanted)


def _scale(rgb: Pixels, size: tuple[int, int]) -> Pixels:
    smaller = size[0] * size[1] < rgb.shape[0] * rgb.shape[1]
    return cv2.resize(rgb, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)


def _fit(rgb: Pixels, wanted: tuple[int, int]) -> Pixels:
    """The middle of the picture on black, cut or padded to [wanted height, wanted width]."""
    canvas = np.zeros((wanted[1], wanted[0], 3), np.uint8)
    slices = []
    for have, want in ((rgb.shape[0], wanted[1]), (rgb.shape[1], wanted[0])):
        length, start, target = min(have, want), max(0, (have - want) // 2), max(0, (want - have) // 2)
        slices.append((slice(start, start + length), slice(target, target + length)))
    canvas[slices[0][1], slices[1][1]] = rgb[slices[0][0], slices[1][0]]
    return canvas


def _make_maps(info: Any) -> tuple[Any, Any]:
    if info.distortion_model not in MODELS:
        known = ", ".join(filter(None, MODELS))
        raise ValueError(f"distortion model {info.distortion_model!r} is not supported; supported: {known}")
    camera, distortion = np.reshape(info.k, (3, 3)), np.array(info.d)
    if camera[0, 0] == 0.0:
        raise ValueError("CameraInfo holds no calibration (k is zero)")
    projection = np.reshape(info.p, (3, 4))[:, :3]
    wanted = projection if projection[0, 0] else camera
    make = cv2.fisheye.initUndistortRectifyMap if info.distortion_model in FISHEYE else cv2.initUndistortRectifyMap
    coefficients = distortion[:4] if info.distortion_model in FISHEYE else distortion
    return make(camera, coefficients, np.eye(3), wanted, (info.width, info.height), cv2.CV_16SC2)
