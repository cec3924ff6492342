"""The observation encoder of Diffusion Policy, and the whole network: ResNet, keypoints, U-Net."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from phyai_adapters._unet1d import Unet, UnetSizes
from phyai_core.layers.resnet import ResNet, ResNetSizes, group_norm

STAGES = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


@dataclass(frozen=True)
class DiffusionSizes:
    """Sizes of the network. `encoders`: one for all cameras, or one each."""

    resnet: ResNetSizes
    unet: UnetSizes
    keypoints: int
    map_pixels: int
    encoders: int
    shared: bool
    crop: tuple[int, int] | None


def canonical_key(key: str) -> str:
    """Key of a file -> our key: stages of the ResNet by name, an encoder that is shared as number 0."""
    key = key.removeprefix("diffusion.")
    if key.startswith("rgb_encoder.") and not key.split(".")[1].isdigit():
        key = "rgb_encoder.0." + key.removeprefix("rgb_encoder.")
    before, found, after = key.partition(".backbone.")
    if found:
        number, _, rest = after.partition(".")
        key = f"{before}.backbone.{STAGES[number]}.{rest}"
    return key


class SpatialSoftmax(nn.Module):
    """Where in the image each of K features is: the expected position under a softmax over pixels, in [-1, 1]."""

    def __init__(self, channels: int, keypoints: int, pixels: int):
        super().__init__()
        self.nets = nn.Conv2d(channels, keypoints, 1)
        self.register_buffer("pos_grid", torch.empty(pixels, 2))

    def forward(self, features: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, 2 K], x and y of each keypoint."""
        weights = self.nets(features).flatten(2).softmax(dim=-1)  # [B, K, h w]
        return (weights @ self.pos_grid).flatten(1)


class ImageEncoder(nn.Module):
    """Images of one camera, cropped in the middle, to 2 K features."""

    def __init__(self, sizes: DiffusionSizes):
        super().__init__()
        self.crop = sizes.crop
        self.backbone = ResNet(sizes.resnet, group_norm)
        self.pool = SpatialSoftmax(sizes.resnet.channels, sizes.keypoints, sizes.map_pixels)
        self.out = nn.Linear(2 * sizes.keypoints, 2 * sizes.keypoints)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, h, w] -> [B, 2 K]."""
        if self.crop is not None:
            top, left = (round((size - part) / 2.0) for size, part in zip(images.shape[2:], self.crop, strict=True))
            images = images[:, :, top : top + self.crop[0], left : left + self.crop[1]]
        return relu(self.out(self.pool(self.backbone(images))))


class DiffusionNetwork(nn.Module):
    """All weights."""

    def __init__(self, sizes: DiffusionSizes):
        super().__init__()
        self.sizes = sizes
        self.rgb_encoder = nn.ModuleList(ImageEncoder(sizes) for _ in range(sizes.encoders))
        self.unet = Unet(sizes.unet)

    def observe(self, images: list[Tensor], state: Tensor) -> Tensor:
        """Per camera [B, n, 3, h, w], state [B, n, S] -> [B, n (S + C 2 K)], the older observation first."""
        parts = [state]
        for index, frames in enumerate(images):
            encoder = self.rgb_encoder[0 if self.sizes.shared else index]
            parts.append(encoder(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]))
        return torch.cat(parts, dim=-1).flatten(1)
