"""What adapters of camera policies in the layout of lerobot share: checks of an observation, units, loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from phyai_adapters._deployment import Deployment, Options
from phyai_adapters._folder_adapter import FolderAdapter
from phyai_adapters._lerobot import OBSERVATION, camera_key, read_config, read_lerobot
from phyai_adapters._processing import MeanStd, unit_images
from phyai_core.types import FloatArray, Observation, PolicySpec
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

COMMON_OPTIONS = ("rate_hz", "state_names", "action_names", "statistics")
PREPARED = "prepared."  # inputs under this prefix are images in model units already


class Parts(NamedTuple):
    """What an adapter holds. `config` is the checkpoint's config.json."""

    spec: PolicySpec
    deployment: Deployment
    config: Mapping[str, Any]
    network: nn.Module
    options: Options
    report: LoadReport


def check_observation(spec: PolicySpec, obs: Observation) -> None:
    """Raise ValueError for other cameras, frames that are no uint8 [h, w, 3], or another state length than wanted."""
    keys = [camera.key for camera in spec.cameras]
    if set(obs.images) != set(keys):
        raise ValueError(f"cameras: {sorted(obs.images)} given, the policy wants exactly {sorted(keys)}")
    for key, frame in obs.images.items():
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
            raise ValueError(f"camera {key}: {frame.dtype} {frame.shape} given, uint8 [h, w, 3] wanted")
    if obs.state.shape != (spec.state_dim,):
        raise ValueError(f"state: {list(obs.state.shape)} given, the policy wants [{spec.state_dim}]")


def check_frame_sizes(spec: PolicySpec, obs: Observation) -> None:
    """Raise ValueError for frames of another size than in training, where the policy does not resize them."""
    for camera in spec.cameras:
        if (size := obs.images[camera.key].shape[:2]) != (camera.height, camera.width):
            raise ValueError(
                f"camera {camera.key}: {size[0]} x {size[1]} pixels given, the policy was trained on "
                f"{camera.height} x {camera.width} and does not resize; set the camera to this size, or "
                f"cameras.{camera.key}.resize to stretch, pad or fill"
            )


def read_lerobot_folder(kind: str, folder: Path, options: Options) -> tuple[Mapping[str, Any], Deployment]:
    """config.json and deployment of a checkpoint. Raises ValueError naming the file or entry."""
    return read_config(folder, kind), read_lerobot(folder, options).choose(options)


def place(network_class: Callable[..., nn.Module], device: torch.device, *arguments) -> nn.Module:
    """The network on `device`, its weights not yet set; it is built without memory first."""
    with torch.device("meta"):
        network = network_class(*arguments)
    return network.to_empty(device=device).requires_grad_(False)


def fill(
    network: nn.Module,
    weights: Checkpoint,
    canonical: Callable[[str], str],
    unused: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> LoadReport:
    """Weights for a network whose members have the names of the file, after `canonical`."""
    return load_weights(weights, network.state_dict(), canonical=canonical, unused=unused, progress=progress)


class CameraPolicy(FolderAdapter):
    """Inputs: `image.<camera>` uint8 [B, h, w, 3] and the normalised `state` [B, S]. A' is A."""

    allowed_options = COMMON_OPTIONS

    def __init__(self, parts: Parts):
        self.spec, self.deployment, self.config, self.network, self.options, self.report = parts
        self.device = next(self.network.parameters()).device
        self._image_units = {
            key: tuple(torch.from_numpy(x).to(self.device)[:, None, None] for x in (units.mean, units.std + units.eps))
            for key, units in self.deployment.images.items()
            if isinstance(units, MeanStd)
        }

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors, B = 1. Raises ValueError for other cameras, frame sizes or state length."""
        check_observation(self.spec, obs)
        check_frame_sizes(self.spec, obs)
        inputs = {f"image.{key}": torch.from_numpy(frame.copy())[None] for key, frame in obs.images.items()}
        return {**inputs, "state": torch.from_numpy(self.deployment.state.forward(obs.state))[None]}

    def prepare_image(self, inputs: Mapping[str, Tensor], key: str) -> Tensor:
        """Frames of one camera -> [B, 3, h, w] in model units."""
        if PREPARED + key in inputs:
            return inputs[PREPARED + key]
        image = unit_images(inputs[f"image.{key}"])
        if key not in self._image_units:
            return image
        mean, std = self._image_units[key]
        return (image - mean) / std

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Model space [H, A'] -> robot units [H, A]."""
        return self.deployment.action.inverse(latents[:, : self.spec.action_dim]).astype(np.float32)

    def encode_actions(self, actions: FloatArray, obs: Observation) -> FloatArray:
        """Robot units [V, A] -> model space [V, A'], padding zero: the inverse of `postprocess`, whatever is seen."""
        encoded = np.zeros((len(actions), self.spec.latent_dim), np.float32)
        encoded[:, : self.spec.action_dim] = self.deployment.action.forward(actions)
        return encoded

    def recorded_inputs(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Policy inputs as recorded behind lerobot's preprocessor -> inputs of this adapter."""
        names = {camera_key(name): name for name in recorded if name.startswith(OBSERVATION)}
        images = {PREPARED + camera.key: recorded[names[camera.key]] for camera in self.spec.cameras}
        return {**images, "state": recorded["observation.state"]}
