"""The sizes of a ResNet, told from the shapes in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phyai_core.layers.resnet import STAGES, ResNetSizes


def read_resnet_sizes(shapes: Mapping[str, Sequence[int]], prefix: str) -> ResNetSizes:
    """Of the network under `prefix`, its members named as torchvision does. Raises ValueError for other ResNets."""
    if f"{prefix}conv1.weight" not in shapes:
        raise ValueError(f"checkpoint: {prefix}conv1.weight is missing; these are not the weights of this policy")
    if f"{prefix}layer1.0.conv3.weight" in shapes:
        raise ValueError(f"checkpoint: {prefix} is a ResNet-50 or deeper; supported: resnet18, resnet34")
    blocks = []
    for stage in range(1, STAGES + 1):
        start = f"{prefix}layer{stage}."
        indices = {int(key[len(start) :].split(".")[0]) for key in shapes if key.startswith(start)}
        blocks.append(len(indices))
    return ResNetSizes(shapes[f"{prefix}conv1.weight"][0], tuple(blocks))
