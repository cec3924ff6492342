"""ACT (action chunking with transformers): one pass from cameras and state to a chunk, without denoise steps.

Nothing can tie a new chunk to the running one, so chunks are swapped as they come, blended, averaged over time, or
waited for. Source: arXiv 2304.13705, huggingface/lerobot policies/act.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phyai_adapters._act import ActNetwork, ActSizes, map_positions
from phyai_adapters._camera_policy import CameraPolicy, Parts, fill, place, read_lerobot_folder
from phyai_adapters._deployment import Deployment, Options
from phyai_adapters._lerobot import require
from phyai_adapters._resnet_files import read_resnet_sizes
from phyai_adapters._stage import Stage
from phyai_core.layers.resnet import exact_convolutions, map_size
from phyai_core.weights import Checkpoint, Progress

UNUSED = ("vae_encoder*",)  # what training encodes the demonstrated chunk with
VARIANTS = {
    "n_obs_steps": (1,),
    "pre_norm": (False,),
    "feedforward_activation": ("relu",),
    "vision_backbone": ("resnet18", "resnet34"),
    "replace_final_stride_with_dilation": (False, 0),
}


class Memory(NamedTuple):
    """The encoder's output [B, T, D] and the positions of its tokens [T, D]."""

    tokens: Tensor
    position: Tensor


def canonical_key(key: str) -> str:
    return key.removeprefix("model.")


def read_sizes(
    config: Mapping[str, Any], deployment: Deployment, shapes: Mapping[str, Sequence[int]], folder: Path
) -> ActSizes:
    """From config.json, and from the shapes where it does not say."""
    require(config, folder, **VARIANTS)
    if unknown := sorted(set(config["input_features"]) & {"observation.environment_state"}):
        raise ValueError(f"{folder / 'config.json'}: {unknown[0]} exists in simulation only; use a policy without it")
    return ActSizes(
        resnet=read_resnet_sizes(shapes, "backbone."),
        width=config["dim_model"],
        num_heads=config["n_heads"],
        mlp_width=config["dim_feedforward"],
        encoder_depth=config["n_encoder_layers"],
        decoder_depth=config["n_decoder_layers"],
        latent=config["latent_dim"],
        action_horizon=deployment.action_horizon,
        state_dim=len(deployment.state_names),
        action_dim=len(deployment.action_names),
    )


class Act(CameraPolicy):
    """The adapter of ACT. `deployment` holds statistics and names, `report` what became of every key of the file."""

    kind = "act"

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.vision = self.network.backbone
        self.position = self._positions()

    @classmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> Act:
        """Of a folder in lerobot layout."""
        config, deployment = read_lerobot_folder(cls.kind, folder, options)
        spec = deployment.spec(len(deployment.action_names), options.rate_hz, folder)
        weights = Checkpoint(folder)
        shapes = {canonical_key(key): shape for key, shape in weights.shapes.items()}
        network = place(ActNetwork, device, read_sizes(config, deployment, shapes, folder))
        report = fill(network, weights, canonical_key, UNUSED, progress)
        return cls(Parts(spec, deployment, config, network, options, report))

    @torch.no_grad()
    def _positions(self) -> Tensor:
        """[T, D] of all encoder tokens; STATIC, as image sizes are."""
        width = self.network.sizes.width
        maps = [
            map_positions(map_size(camera.height), map_size(camera.width), width, self.device)
            for camera in self.spec.cameras
        ]
        return torch.cat([self.network.encoder_1d_feature_pos_embed.weight, *maps])

    @torch.no_grad()
    def embed(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Inputs on the device -> encoder tokens [B, T, D]."""
        images = [self.prepare_image(inputs, camera.key) for camera in self.spec.cameras]
        with exact_convolutions():
            return self.network.embed(images, inputs["state"])

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Memory:
        """Inputs on the device -> what the decoder attends to."""
        return Memory(self.network.encode(self.embed(inputs), self.position), self.position)

    @torch.no_grad()
    def predict(self, prefix: Memory, noise: Tensor) -> Tensor:
        """The chunk [B, H, A] in model units; the noise plays no part."""
        return self.network.action_head(self.network.decode(*prefix))

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of one inference, under the names and in the axes [T, B, D] of lerobot's code."""
        yield Stage("encoder.in_pos_embed", self.position[:, None])
        yield Stage("encoder.in_tokens", self.embed(inputs).transpose(0, 1))
        memory = self.encode_prefix(inputs)
        yield Stage("encoder.out", memory.tokens.transpose(0, 1))
        yield Stage("decoder.out", self.network.decode(*memory).transpose(0, 1))
        yield Stage("action_chunk", self.predict(memory, noise))
