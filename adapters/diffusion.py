"""Diffusion Policy: the last observations steer a U-Net that denoises the rows of a chunk, by DDPM or DDIM.

The sample covers the ticks of the older observations too; its first row that is still to be executed belongs to the
newest one. Nothing ties a new chunk to the running one. Source: arXiv 2303.04137, huggingface/lerobot
policies/diffusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phyai_adapters._camera_policy import (
    COMMON_OPTIONS,
    PREPARED,
    CameraPolicy,
    Parts,
    check_frame_sizes,
    check_observation,
    fill,
    place,
    read_lerobot_folder,
)
from phyai_adapters._deployment import Deployment, Options
from phyai_adapters._diffusion import DiffusionNetwork, DiffusionSizes, canonical_key
from phyai_adapters._diffusion_solver import PREDICTIONS, SAMPLERS, SCHEDULES, Solver
from phyai_adapters._lerobot import require
from phyai_adapters._resnet_files import read_resnet_sizes
from phyai_adapters._stage import Stage
from phyai_adapters._unet1d import UnetSizes
from phyai_core.layers.resnet import exact_convolutions
from phyai_core.types import Observation
from phyai_core.weights import Checkpoint, Progress

VARIANTS = {
    "vision_backbone": ("resnet18", "resnet34"),
    "use_group_norm": (True,),
    "use_film_scale_modulation": (True,),
    "resize_shape": (None,),
    "noise_scheduler_type": SAMPLERS,
    "prediction_type": PREDICTIONS,
    "beta_schedule": SCHEDULES,
}


def read_sizes(
    config: Mapping[str, Any], deployment: Deployment, shapes: Mapping[str, Sequence[int]], folder: Path
) -> DiffusionSizes:
    """From config.json, and from the shapes where it does not say."""
    require(config, folder, **VARIANTS)
    cameras, shared = len(deployment.cameras), not config.get("use_separate_rgb_encoder_per_camera", False)
    if not cameras:
        raise ValueError(f"{folder / 'config.json'}: no camera among the input features; supported: policies that see")
    keypoints = config["spatial_softmax_num_keypoints"]
    per_step = len(deployment.state_names) + cameras * 2 * keypoints
    unet = UnetSizes(
        action_dim=len(deployment.action_names),
        channels=tuple(config["down_dims"]),
        kernel=config["kernel_size"],
        groups=config["n_groups"],
        step_width=config["diffusion_step_embed_dim"],
        observation_width=config["n_obs_steps"] * per_step,
    )
    resnet = read_resnet_sizes(shapes, "rgb_encoder.0.backbone.")
    pixels = shapes["rgb_encoder.0.pool.pos_grid"][0]
    crop = tuple(config["crop_shape"]) if config.get("crop_shape") else None
    return DiffusionSizes(resnet, unet, keypoints, pixels, 1 if shared else cameras, shared, crop)


class Diffusion(CameraPolicy):
    """Inputs: `image.<camera>` uint8 [B, n, h, w, 3] and the normalised `state` [B, n, S], oldest first."""

    kind = "diffusion"
    allowed_options = (*COMMON_OPTIONS, "action_horizon", "num_denoise_steps")

    def __init__(self, parts: Parts, solver: Solver):
        super().__init__(parts)
        self.solver = solver
        self.rows = self.config["horizon"]  # of a sample
        self.vision = self.network.rgb_encoder[-1]

    @classmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> Diffusion:
        """Of a folder in lerobot layout."""
        config, deployment = read_lerobot_folder(cls.kind, folder, options)
        weights = Checkpoint(folder)
        shapes = {canonical_key(key): shape for key, shape in weights.shapes.items()}
        network = place(DiffusionNetwork, device, read_sizes(config, deployment, shapes, folder))
        count = options.num_denoise_steps or config["num_inference_steps"] or config["num_train_timesteps"]
        solver = Solver.from_config(config, count)
        deployment = replace(
            deployment, action_horizon=_usable_rows(config, options.action_horizon), num_denoise_steps=0
        )
        spec = replace(
            deployment.spec(len(deployment.action_names), options.rate_hz, folder),
            observation_steps=config["n_obs_steps"],
            noise_rows=solver.noises * config["horizon"],
        )
        report = fill(network, weights, canonical_key, progress=progress)
        return cls(Parts(spec, deployment, config, network, options, report), solver)

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation and its history -> CPU tensors, B = 1. A history that is too short begins with copies.

        Raises ValueError for other cameras, frame sizes or state length.
        """
        steps = self.spec.observation_steps
        seen = [*obs.history, obs][-steps:]
        seen = [seen[0]] * (steps - len(seen)) + seen
        for one in seen:
            check_observation(self.spec, one)
            check_frame_sizes(self.spec, one)
        inputs = {
            f"image.{camera.key}": torch.from_numpy(np.stack([one.images[camera.key] for one in seen]))[None]
            for camera in self.spec.cameras
        }
        states = np.stack([self.deployment.state.forward(one.state) for one in seen])
        return {**inputs, "state": torch.from_numpy(states)[None]}

    def prepare_frames(self, inputs: Mapping[str, Tensor], key: str) -> Tensor:
        """Frames of one camera -> [B, n, 3, h, w] in model units."""
        if PREPARED + key in inputs:
            return inputs[PREPARED + key]
        frames = inputs[f"image.{key}"]
        return self.prepare_image({f"image.{key}": frames.flatten(0, 1)}, key).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Inputs on the device -> what steers the U-Net, [B, W]."""
        images = [self.prepare_frames(inputs, camera.key) for camera in self.spec.cameras]
        with exact_convolutions():
            return self.network.observe(images, inputs["state"])

    @torch.no_grad()
    def denoise(self, prefix: Tensor, x: Tensor, step: int) -> Tensor:
        """The U-Net's output [B, T, A] at step `step` of training."""
        with exact_convolutions():
            return self.network.unet(x, torch.full((len(x),), step, device=x.device), prefix)

    @torch.no_grad()
    def sample(self, prefix: Tensor, noise: Tensor) -> Tensor:
        """All rows of a sample, [B, T, A]."""
        return self.solver.sample(lambda x, step: self.denoise(prefix, x, step), noise)

    @torch.no_grad()
    def predict(self, prefix: Tensor, noise: Tensor) -> Tensor:
        """The rows from the newest observation on, [B, H, A] in model units."""
        first = self.spec.observation_steps - 1
        return self.sample(prefix, noise)[:, first : first + self.spec.action_horizon].contiguous()

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of one inference; the sampler's name and its number of steps belong to the names."""
        sampler = f"{self.config['noise_scheduler_type'].lower()}{len(self.solver.steps)}"
        prefix = self.encode_prefix(inputs)
        yield Stage("global_cond", prefix)
        yield Stage(f"{sampler}.timesteps", self.solver.steps)
        first = int(self.solver.steps[0])
        yield Stage(f"unet.eps(noise,t={first})", self.denoise(prefix, noise[:, : self.rows], first))
        yield Stage(f"{sampler}.full_horizon", self.sample(prefix, noise))
        yield Stage(f"{sampler}.action_chunk", self.predict(prefix, noise))


def _usable_rows(config: Mapping[str, Any], wanted: int | None) -> int:
    """H. Raises ValueError where more rows are wanted than are still to be executed."""
    usable = config["horizon"] - config["n_obs_steps"] + 1
    if wanted is not None and wanted > usable:
        raise ValueError(f"action_horizon: {wanted} rows wanted; a sample has {usable} from the newest observation on")
    return wanted or usable
