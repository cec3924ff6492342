"""What Cosmos3's DROID policy is shown: three cameras on one canvas.

    wrist                      the upper two thirds
    exterior 1 | exterior 2    half as large, side by side below

The canvas is 540 x 640, padded by reflection to the nearest shape of the 480 tier, 544 x 736. Source: NVIDIA
cosmos-framework, scripts/action_policy_server_robolab.py and data/generator/action/utils/transforms.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

CANVAS_SIZE, SERVER_SIZE = (540, 640), (544, 736)  # height, width


def compose(frames: Sequence[NDArray[np.uint8]], video_size: tuple[int, int]) -> Tensor:
    """Wrist and exterior frames [h, w, 3] of any sizes -> canvas uint8 [h, w, 3], no larger than `video_size`.

    Raises ValueError for a wrist frame that cannot be halved.
    """
    wrist, *exterior = frames
    half = wrist.shape[0] // 2, wrist.shape[1] // 2
    if 0 in half:
        raise ValueError(f"camera of the wrist: {list(wrist.shape[:2])} pixels given; wanted are 2 x 2 or more")
    below = torch.cat([_resize(frame, half) for frame in exterior], dim=1)
    rows = torch.cat((torch.from_numpy(np.ascontiguousarray(wrist[:, : 2 * half[1]])), below))
    return _shrink(_resize(rows.numpy(), CANVAS_SIZE), video_size)


def _resize(frame: NDArray[np.uint8], size: tuple[int, int]) -> Tensor:
    """Bilinear, without antialiasing, rounded down."""
    pixels = torch.from_numpy(np.ascontiguousarray(frame))
    if tuple(pixels.shape[:2]) == size:
        return pixels
    scaled = interpolate(pixels.permute(2, 0, 1)[None].float(), size=size, mode="bilinear", align_corners=False)
    return scaled[0].permute(1, 2, 0).to(torch.uint8)


def _shrink(canvas: Tensor, most: tuple[int, int]) -> Tensor:
    """Bicubic, with antialiasing, aspect kept; a canvas that fits stays as it is."""
    scale = min(1.0, most[0] / canvas.shape[0], most[1] / canvas.shape[1])
    if scale == 1.0:
        return canvas
    size = [max(1, int(scale * pixels + 0.5)) for pixels in canvas.shape[:2]]
    scaled = interpolate(canvas.permute(2, 0, 1)[None].float(), size=size, mode="bicubic", antialias=True)
    return scaled.round().clamp(0, 255)[0].permute(1, 2, 0).to(torch.uint8)


def fill_video_frame(canvas: Tensor, video_size: tuple[int, int]) -> Tensor:
    """Canvases uint8 [B, h, w, 3] -> frames float32 [B, 3, H, W] in [-1, 1], more on the right and below."""
    missing = video_size[0] - canvas.shape[1], video_size[1] - canvas.shape[2]
    mode = "reflect" if missing[0] < canvas.shape[1] and missing[1] < canvas.shape[2] else "replicate"
    pixels = canvas.permute(0, 3, 1, 2).float()
    return pad(pixels, (0, missing[1], 0, missing[0]), mode=mode) / 127.5 - 1.0
