"""GR00T N1.7: a Qwen3-VL backbone, an alternating diffusion transformer, one set of encoders per kind of robot.

Flow time runs as ours does, from 0 (noise) to 1 (action). Where a robot's chunk is shorter than the network's, the
rows behind it lie beside it in the latent: latent [H, n A'] is the network's [n H, A'].
Source: arXiv 2503.14734, NVIDIA/Isaac-GR00T.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from phyai_adapters._camera_policy import check_frame_sizes, check_observation
from phyai_adapters._deployment import Options, read_json
from phyai_adapters._flow_time import table_rows
from phyai_adapters._folder_adapter import FolderAdapter
from phyai_adapters._groot_files import Deployment, read_deployment
from phyai_adapters._groot_frames import prepare_frame
from phyai_adapters._groot_head import Prefix
from phyai_adapters._groot_network import GrootNetwork, load_network
from phyai_adapters._groot_trace import recorded_inputs, trace
from phyai_adapters._processing import cut_prompt, unit_images
from phyai_adapters._qwen3_vision import MERGE, cut_patches
from phyai_adapters._qwen3_vl import count_positions
from phyai_adapters._stage import Stage
from phyai_adapters._tokenizers import Tokenizer, find_tokens, open_tokenizer
from phyai_core.types import FloatArray, Observation
from phyai_core.validity import Lifetime
from phyai_core.weights import LoadReport, Progress

OPTIONS = (
    *("rate_hz", "tokenizer", "image_tokens", "embodiment", "frame_sizes", "state_names", "action_names"),
    *("num_denoise_steps", "dtype"),
)
IMAGE_MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


class GrootParts(NamedTuple):
    """What an adapter holds."""

    deployment: Deployment
    config: Mapping[str, Any]
    network: GrootNetwork
    options: Options
    report: LoadReport


class Groot(FolderAdapter):
    """Inputs: `image.<camera>` uint8 [B, h, w, 3], `text` and `text_mask` [B, T], `positions` [B, 3, T], `state`.

    T is the same for every prompt of one length only: the prompt is padded on the left to `prompt_tokens`.
    """

    kind = "groot"
    allowed_options = OPTIONS
    lifetimes: ClassVar[Mapping[str, Lifetime]] = {
        "time_tables": Lifetime.STATIC,
        "prefix": Lifetime.OBSERVATION,
        "velocity": Lifetime.STEP,
    }
    prompt_tokens = 64  # longest task, beside the images

    def __init__(self, parts: GrootParts, tokenizer: Tokenizer):
        self.deployment, self.config, self.network, self.options, self.report = parts
        deployment, config, network, options, _ = parts
        self._tokenizer = tokenizer
        self.encode_text = lru_cache(64)(lambda text: tuple(tokenizer.encode(text)))
        self.device = network.backbone.language_model["embed_tokens"].weight.device
        self.vision = network.backbone.visual
        self.rows = config["action_horizon"]
        self.folds = -(-self.rows // deployment.action_horizon)
        steps = options.num_denoise_steps or config["num_inference_timesteps"]
        width = self.folds * network.action_head.sizes.latent_dim
        self.spec = deployment.spec(width, steps, options.rate_hz)
        self.marks = find_tokens(tokenizer, IMAGE_MARKS, options.image_tokens)
        with torch.no_grad():
            self.time_tables = network.action_head.tabulate(steps)

    @classmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> Groot:
        """Of a folder of Isaac-GR00T N1.7."""
        config = read_json(folder / "config.json")
        if config.get("model_type") != "Gr00tN1d7":
            raise ValueError(
                f"{folder / 'config.json'}: model_type is {config.get('model_type')!r}; supported: 'Gr00tN1d7' "
                "(GR00T N1.7); convert or fine-tune older checkpoints with Isaac-GR00T"
            )
        if options.rate_hz is None:
            raise ValueError(f'rate_hz: {folder} does not say its rate; write {{"rate_hz": <Hz>}} into phyai.json')
        deployment = read_deployment(folder, options)
        tokenizer = open_tokenizer(options.tokenizer, folder)
        network, report = load_network(folder, config, device, options.dtype, progress)
        return cls(GrootParts(deployment, config, network, options, report), tokenizer)

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors, B = 1. Raises ValueError for other cameras, frame sizes or state length."""
        check_observation(self.spec, obs)
        check_frame_sizes(self.spec, obs)
        images = {f"image.{c.key}": self._frame(obs, c.key) for c in self.spec.cameras}
        state = torch.from_numpy(self.deployment.state.forward(obs.state))[None, None]
        size = next(iter(images.values())).shape[1:3]
        text, mask = self._tokens(obs.prompt, self.grid(size))
        return {
            **images,
            "text": text,
            "text_mask": mask,
            "feature_mask": mask,
            "positions": count_positions(text, mask, self.marks[1], tuple(part // MERGE for part in self.grid(size))),
            "state": pad(state, (0, self.network.action_head.sizes.state_dim - state.shape[-1])),
            "embodiment": torch.tensor([self.deployment.embodiment_id]),
        }

    def grid(self, size) -> tuple[int, int]:
        """Rows and columns of patches of an image [h, w]."""
        patch = self.vision.sizes.patch
        return size[0] // patch, size[1] // patch

    def _frame(self, obs: Observation, key: str) -> Tensor:
        """One frame as the vision tower takes it, uint8 [1, h, w, 3]."""
        return torch.from_numpy(prepare_frame(obs.images[key], self.deployment, self.vision.sizes.patch * MERGE))[None]

    def _tokens(self, prompt: str, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The chat template around images and task: ids and mask [1, T], padded on the left."""
        text = re.sub(r"[^\w\s]", "", prompt.lower()) if self.deployment.clean_text else prompt
        before, image, behind = self.marks
        picture = (before, *[image] * (grid[0] * grid[1] // MERGE**2), behind)
        head, tail = self.encode_text("<|im_start|>user\n"), self.encode_text("<|im_end|>\n")
        task = cut_prompt(self.encode_text(text), self.prompt_tokens)
        ids = [*head, *picture * len(self.spec.cameras), *task, *tail]
        missing = self.prompt_tokens - len(task)
        mask = torch.arange(missing + len(ids))[None] >= missing
        return torch.tensor([[self._tokenizer.pad_id] * missing + ids]), mask

    # The network.

    @torch.no_grad()
    def see(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Inputs on the device -> features of the backbone [B, T, D]."""
        backbone, sizes = self.network.backbone, self.vision.sizes
        if "patches" in inputs:
            patches, grid = inputs["patches"], inputs["grid"].shape[1:]
        else:
            frames = torch.stack([inputs[f"image.{camera.key}"] for camera in self.spec.cameras], dim=1)
            images = unit_images(frames.flatten(0, 1)) * 2.0 - 1.0
            grid = self.grid(images.shape[2:])
            patches = cut_patches(images, sizes.patch, sizes.frames).unflatten(0, frames.shape[:2])
        is_image = inputs["text"] == self.marks[1]
        patches = patches.to(backbone.visual.pos_embed.weight.dtype)
        return backbone(inputs["text"], inputs["text_mask"], inputs["positions"], is_image, patches, tuple(grid))

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Prefix:
        """Inputs on the device -> what every denoise step reads."""
        head = self.network.action_head
        seen = head.attend_features(self.see(inputs).to(head.vlln.weight.dtype), inputs["feature_mask"])
        is_image = inputs["text"] == self.marks[1]
        state = inputs["state"].to(seen.dtype)
        return head.prepare(seen, inputs["text_mask"], is_image, state, inputs["embodiment"])

    @torch.no_grad()
    def denoise_step(self, prefix: Prefix, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity [B, H, A'] float32; flow time is the same for all rows."""
        head = self.network.action_head
        x = self.unfold(latents)[:, : self.rows].to(prefix.state.dtype)
        rows = table_rows(flow_time[:, -1], self.spec.num_denoise_steps)
        velocity = head(prefix, x, self.time_tables, rows).float()
        return self.fold(pad(velocity, (0, 0, 0, self.folds * latents.shape[1] - self.rows)))

    def unfold(self, latents: Tensor) -> Tensor:
        """[B, H, n A'] -> [B, n H, A']."""
        return torch.cat(latents.chunk(self.folds, dim=-1), dim=1)

    def fold(self, rows: Tensor) -> Tensor:
        """[B, n H, A'] -> [B, H, n A']."""
        return torch.cat(rows.chunk(self.folds, dim=1), dim=-1)

    # After the network.

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Model space [H, A'] -> robot units [H, A]: cut the padding, un-normalise, add the state to relative dims."""
        return self.deployment.action.inverse(latents[:, : self.spec.action_dim]) + self._anchor(obs)

    def encode_actions(self, actions: FloatArray, obs: Observation) -> FloatArray:
        """Robot units [V, A] -> model space [V, A'] as seen from `obs`: the inverse of postprocess inside its range."""
        scale = self.deployment.action
        low, high = scale.low[: len(actions)], scale.high[: len(actions)]
        encoded = np.zeros((len(actions), self.spec.latent_dim), np.float32)
        encoded[:, : self.spec.action_dim] = type(scale)(low, high).forward(actions - self._anchor(obs))
        return encoded

    def _anchor(self, obs: Observation) -> FloatArray:
        """[A] the state under relative dims, 0 under absolute ones."""
        anchor = self.deployment.anchor
        return np.where(anchor >= 0, obs.state[np.maximum(anchor, 0)], 0.0).astype(np.float32)

    # Parity.

    def recorded_inputs(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Network inputs as recorded -> inputs of this adapter."""
        return recorded_inputs(self, recorded)

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of one inference."""
        return trace(self, inputs, noise)
