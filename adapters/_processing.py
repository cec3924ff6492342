"""Observation to model units and back, bit by bit as the code base computes it that a checkpoint came from.

lerobot works in float32 and keeps `x * std + mean` free of the epsilon it divides by; openpi works in float64 and uses
1e-6 both ways. lerobot resizes floats without antialiasing, openpi uint8 images with it. Sources: huggingface/lerobot
processor/normalize_processor.py and policies/pi0*, Physical-Intelligence/openpi transforms.py and shared/.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

STATE_BINS = np.linspace(-1, 1, 256 + 1)[:-1]


class Normaliser:
    """The identity. Arrays are [..., width], computed and returned in `dtype`."""

    dtype: type = np.float32

    def forward(self, x: NDArray) -> NDArray:
        """Robot units -> model units."""
        return np.asarray(x, self.dtype)

    def inverse(self, x: NDArray) -> NDArray:
        """Model units -> robot units."""
        return np.asarray(x, self.dtype)


@dataclass(frozen=True)
class MeanStd(Normaliser):
    """forward (x - mean) / (std + eps), inverse x * (std + inverse_eps) + mean."""

    mean: NDArray
    std: NDArray
    eps: float
    inverse_eps: float
    dtype: type = np.float32

    def forward(self, x: NDArray) -> NDArray:
        """Robot units -> model units."""
        return (np.asarray(x, self.dtype) - self.mean) / (self.std + self.dtype(self.eps))

    def inverse(self, x: NDArray) -> NDArray:
        """Model units -> robot units."""
        return np.asarray(x, self.dtype) * (self.std + self.dtype(self.inverse_eps)) + self.mean


@dataclass(frozen=True)
class Range(Normaliser):
    """[low, low + span] <-> [-1, 1]; values outside are not clipped. `span` is never zero."""

    low: NDArray
    span: NDArray
    dtype: type = np.float32

    def forward(self, x: NDArray) -> NDArray:
        """Robot units -> model units."""
        return self.dtype(2.0) * (np.asarray(x, self.dtype) - self.low) / self.span - self.dtype(1.0)

    def inverse(self, x: NDArray) -> NDArray:
        """Model units -> robot units."""
        return (np.asarray(x, self.dtype) + self.dtype(1.0)) * self.span / self.dtype(2.0) + self.low


def clean_prompt(text: str) -> str:
    """Strip, underscores and newlines to blanks."""
    return text.strip().replace("_", " ").replace("\n", " ")


def state_prompt(text: str, state: NDArray) -> str:
    """The prompt of pi0.5 with the normalised, unpadded state as bins; -1 below the range, 255 at its top and above."""
    bins = np.digitize(state, STATE_BINS) - 1
    return f"Task: {clean_prompt(text)}, State: {' '.join(map(str, bins))};\nAction: "


def cut_prompt(ids: Sequence[int], longest: int) -> Sequence[int]:
    """As in training; warns of what is lost, in the same words each time, so that it is shown once."""
    if len(ids) > longest:
        warnings.warn(f"prompt: cut to the {longest} tokens of training, the end is lost; shorten it", stacklevel=3)
    return ids[:longest]


def pad_tokens(ids: Sequence[int], buckets: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids -> tokens int64 [1, T] and mask bool [1, T], T the smallest of the ascending buckets that holds them.

    Ids beyond the largest bucket are cut off, as in training.
    """
    length = next((bucket for bucket in buckets if bucket >= len(ids)), buckets[-1])
    kept = list(ids)[:length]
    tokens = np.full((1, length), pad_id, np.int64)
    tokens[0, : len(kept)] = kept
    return torch.from_numpy(tokens), torch.from_numpy(np.arange(length)[None] < len(kept))


def lengthen_prompt(inputs: Mapping[str, Tensor], length: int, pad_id: int) -> dict[str, Tensor]:
    """Inputs with `tokens` and `token_mask` [B, T] padded to the longer `length`, so that robots can share a batch."""
    more = length - inputs["tokens"].shape[1]
    tokens, mask = pad(inputs["tokens"], (0, more), value=pad_id), pad(inputs["token_mask"], (0, more))
    return {**inputs, "tokens": tokens, "token_mask": mask}


def pad_last(x: NDArray, width: int) -> Tensor:
    """[n] -> float32 [1, width] with zeros behind."""
    out = torch.zeros(1, width)
    out[0, : len(x)] = torch.from_numpy(np.asarray(x, np.float32))
    return out


def unit_images(images: Tensor) -> Tensor:
    """[B, h, w, 3] uint8, or float in [0, 1] -> float32 [B, 3, h, w] in [0, 1]."""
    images = images.permute(0, 3, 1, 2)
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _fitted(height: int, width: int, size: int) -> tuple[int, int]:
    """Size of an h x w image scaled to just fit into a square, and never less than one pixel."""
    ratio = max(width, height) / size
    return max(int(height / ratio), 1), max(int(width / ratio), 1)


def resize_with_pad(images: Tensor, size: int, antialias: bool = False, centred: bool = True) -> Tensor:
    """[B, 3, h, w] in [0, 1] -> [B, 3, size, size]: bilinear, aspect kept, zeros around (or left and above only).

    Without antialiasing it is lerobot's resize. With it, it is openpi's within one grey level: as in Pillow, columns
    first, then rows, each rounded to 8 bits. Images of the wanted size pass through.
    """
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    fitted = _fitted(height, width, size)
    if antialias:
        for shape in ((height, fitted[1]), fitted):
            images = (interpolate(images, size=shape, mode="bilinear", antialias=True) * 255 + 0.5).floor() / 255
    else:
        images = interpolate(images, size=fitted, mode="bilinear", align_corners=False).clamp(0.0, 1.0)
    top, left = (size - fitted[0]) // (2 if centred else 1), (size - fitted[1]) // (2 if centred else 1)
    return pad(images, (left, size - fitted[1] - left, top, size - fitted[0] - top), value=0.0)


def resize_frame_with_pad(frame: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """[h, w, 3] -> [size, size, 3], openpi's resize: Pillow's antialiased bilinear on uint8, centred, black around."""
    from PIL import Image  # only checkpoints of the openpi layout need Pillow

    if frame.shape[:2] == (size, size):
        return frame
    height, width = _fitted(*frame.shape[:2], size)
    out = np.zeros((size, size, 3), np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    scaled = Image.fromarray(frame).resize((width, height), resample=Image.Resampling.BILINEAR)
    out[top : top + height, left : left + width] = np.asarray(scaled)
    return out
