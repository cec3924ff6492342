"""How GR00T N1.7 prepares a frame: letter box, shorter edge, centre, shorter edge again, whole tokens.

Written after Isaac-GR00T's recipe; no recording of it was at hand.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from phyai_adapters._groot_files import Deployment


def prepare_frame(frame: NDArray[np.uint8], deployment: Deployment, unit: int) -> NDArray[np.uint8]:
    """[h, w, 3] -> [h', w', 3], sides multiples of `unit` pixels (one token)."""
    if deployment.letter_box and frame.shape[0] != frame.shape[1]:
        missing = max(frame.shape[:2]) - np.array(frame.shape[:2])
        frame = np.pad(frame, [(part // 2, part - part // 2) for part in missing] + [(0, 0)])
    frame = _scale_shorter(frame, deployment.shortest_edge)
    height, width = (max(1, int(part * deployment.crop_fraction)) for part in frame.shape[:2])
    top, left = (frame.shape[0] - height) // 2, (frame.shape[1] - width) // 2
    frame = _scale_shorter(frame[top : top + height, left : left + width], deployment.shortest_edge)
    return _fit(frame, unit)


def _fit(frame: NDArray[np.uint8], unit: int) -> NDArray[np.uint8]:
    """Scale to the nearest whole tokens."""
    size = [max(1, round(part / unit)) * unit for part in frame.shape[:2]]
    if size == list(frame.shape[:2]):
        return np.ascontiguousarray(frame)
    x = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None].float()
    x = interpolate(x, size=size, mode="bicubic", antialias=True).round().clamp(0, 255)
    return x[0].permute(1, 2, 0).to(torch.uint8).numpy()


def _scale_shorter(frame: NDArray[np.uint8], edge: int) -> NDArray[np.uint8]:
    ratio = edge / min(frame.shape[:2])
    height, width = (round(part * ratio) for part in frame.shape[:2])
    if (height, width) == frame.shape[:2]:
        return frame
    import cv2  # only frames of another size need it

    return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
