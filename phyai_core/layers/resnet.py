"""ResNet-18 and -34 without pooling head, as camera encoders of policies use them: an image to a map of features.

Names of members are those of torchvision, so that weights keep their keys. Two norms are in use: statistics frozen at
training time, y = w (x - mean) / sqrt(var + eps) + b, and group norm with 16 channels per group.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu

EPS = 1e-5
GROUP_CHANNELS = 16
STAGES = 4  # halvings of the image after the first two


@dataclass(frozen=True)
class ResNetSizes:
    """`width` is that of the first stage (64 in the published networks); each later stage doubles it."""

    width: int
    blocks: tuple[int, ...]  # per stage

    @property
    def channels(self) -> int:
        """Channels of the feature map."""
        return self.width * 2 ** (STAGES - 1)


def exact_convolutions() -> AbstractContextManager:
    """Inside it, cuDNN computes float32 convolutions in float32; left to itself it rounds their inputs to TF32.

    That would cost three digits, which policies that run in float32 do not expect.
    """
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def map_size(pixels: int) -> int:
    """Height or width of the feature map of an image of so many pixels."""
    for _ in range(STAGES + 1):
        pixels = (pixels + 1) // 2
    return pixels


class FrozenNorm(nn.Module):
    """Batch norm with the statistics of training."""

    def __init__(self, channels: int):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> the same shape."""
        scale = self.weight * (self.running_var + EPS).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm with the groups that policies use in place of batch norm."""
    return nn.GroupNorm(channels // GROUP_CHANNELS, channels, eps=EPS)


class Convolution(nn.Module):
    """Without bias; 'same' padding for odd kernels."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__()
        self.stride, self.padding = stride, kernel // 2
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C', h / stride, w / stride]."""
        return conv2d(x, self.weight, stride=self.stride, padding=self.padding)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.conv1, self.bn1 = Convolution(inputs, outputs, 3, stride), norm(outputs)
        self.conv2, self.bn2 = Convolution(outputs, outputs, 3), norm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(Convolution(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C', h / stride, w / stride]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet(nn.Module):
    """Images to feature maps. `norm(channels)` makes the norm behind each convolution."""

    def __init__(self, sizes: ResNetSizes, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.sizes = sizes
        self.conv1, self.bn1 = Convolution(3, sizes.width, 7, 2), norm(sizes.width)
        before = sizes.width
        for stage, count in enumerate(sizes.blocks):
            width = sizes.width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (count - 1)
            blocks = [BasicBlock(before if i == 0 else width, width, s, norm) for i, s in enumerate(strides)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            before = width

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, h, w] -> [B, C, map_size(h), map_size(w)]."""
        x = max_pool2d(relu(self.bn1(self.conv1(images))), kernel_size=3, stride=2, padding=1)
        for stage in range(STAGES):
            x = getattr(self, f"layer{stage + 1}")(x)
        return x
