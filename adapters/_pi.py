"""What the adapters of pi0 and pi0.5 have in common: preprocessing, the prefix, the denoise step, postprocessing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phyai_adapters._deployment import Options
from phyai_adapters._flow_time import table_rows
from phyai_adapters._loading import PiParts, load_parts, random_parts
from phyai_adapters._paligemma import PiNetwork, PiSizes, Prefix
from phyai_adapters._pi_fusing import FusingAdapter
from phyai_adapters._processing import (
    cut_prompt,
    lengthen_prompt,
    pad_tokens,
    resize_frame_with_pad,
    resize_with_pad,
    unit_images,
)
from phyai_core.layers.gemma import KeysValues
from phyai_core.layers.rotary import RotaryTable
from phyai_core.types import CameraSpec, FloatArray, Observation
from phyai_core.validity import Lifetime, Validity
from phyai_core.weights import Progress

PROMPTS_KEPT = 64  # tokenised texts remembered
KEY_TILE = 64
BF16_STEP = 0.15  # between 0.1 and 0.2 a difference of flow_tiny in bfloat16 is as good as one in float32


class PrefixTokens(NamedTuple):
    """The prefix before the language model."""

    embeddings: Tensor  # [B, P, D]
    mask: Tensor  # bool [B, P], True for real tokens
    positions: Tensor  # int64 [B, P]


class PiAdapter(FusingAdapter):
    """Inputs: `image.<camera>` [B, h, w, 3], `image_mask` [B, C], `tokens` and `token_mask` [B, T], pi0: `state`.

    All shapes follow from the spec and the prompt length T, one of `prompt_buckets`. A runtime may pass on what it
    has computed before: `images` (prepare_images), `prompt_embedding` (embed_prompt).
    """

    network_class: ClassVar[type[PiNetwork]]
    lifetimes: ClassVar[Mapping[str, Lifetime]] = {
        "time_tables": Lifetime.STATIC,
        "prompt_embedding": Lifetime.PROMPT,
        "prefix": Lifetime.OBSERVATION,
        "velocity": Lifetime.STEP,
    }

    def __init__(self, parts: PiParts):
        self.spec, self.deployment, self.network, self._tokenizer, self.options, self.report = parts
        self.encode_text = lru_cache(PROMPTS_KEPT)(lambda text: tuple(self._tokenizer.encode(text)))
        longest = self.deployment.prompt_tokens
        self.prompt_buckets = (*sorted(size for size in self.options.prompt_buckets if size < longest), longest)
        self.device = self.network.vlm.embedding.device
        if self.network.vlm.embedding.dtype is torch.bfloat16:
            self.derivative_step = BF16_STEP
        self.vision = self.network.vlm.vision
        sizes = self.network.sizes
        positions = len(self.spec.cameras) * sizes.vision.tokens + longest + 1 + self.spec.action_horizon
        positions = -(-positions // KEY_TILE) * KEY_TILE  # fused kernels read whole tiles
        self.rotary = RotaryTable(positions, sizes.vlm.head_dim, self.device, self.options.rope_inv_freq)
        self._static = Validity(self.lifetimes)
        self._static.once("time_tables", self.compute_time_tables)
        self.pack()

    @classmethod
    def load(
        cls,
        checkpoint: Path | None,
        device: torch.device,
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> PiAdapter:
        """Read a checkpoint folder in lerobot or openpi layout; `options` replaces its phyai.json.

        Raises ValueError naming the file or option at fault. `report` then holds what became of every key.
        """
        return cls(load_parts(cls.network_class, checkpoint, device, options, progress))

    @classmethod
    def random(cls, sizes: PiSizes, device: torch.device, options: Options | None = None, seed: int = 0) -> PiAdapter:
        """Random weights of the given sizes, for measurements."""
        return cls(random_parts(cls.network_class, sizes, device, options or Options(), seed))

    # What a kind of model adds.

    @abstractmethod
    def prompt_ids(self, obs: Observation) -> list[int]:
        """Token ids of the prompt, uncut and unpadded."""

    @abstractmethod
    def compute_time_tables(self) -> Tensor:
        """Everything that depends on flow time alone, N + 1 rows."""

    @abstractmethod
    def embed_actions(self, latents: Tensor, rows: Tensor) -> Tensor:
        """latents [B, H, A'] at rows [B, H] of the time tables -> action tokens [B, H, D] float32."""

    def modulations(self, rows: Tensor) -> Sequence[Tensor] | None:
        """Modulations [B, H, 3 D] of the adaptive norms; None where norms are plain."""
        return None

    def add_state(self, keys_values, mask: Tensor, inputs) -> tuple[tuple[KeysValues, ...], Tensor]:
        """Where the state is a token of the expert, its keys and values join the prefix."""
        return keys_values, mask

    @property
    def time_tables(self) -> Tensor:
        """What compute_time_tables gave when the adapter was made."""
        return self._static.read("time_tables")

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors, B = 1, which may share its memory.

        Raises ValueError for other cameras or another state length.
        """
        keys = [camera.key for camera in self.spec.cameras]
        if set(obs.images) != set(keys):
            raise ValueError(f"cameras: {sorted(obs.images)} given, the policy wants exactly {sorted(keys)}")
        if obs.state.shape != (self.spec.state_dim,):
            raise ValueError(f"state: {list(obs.state.shape)} given, the policy wants [{self.spec.state_dim}]")
        inputs = {f"image.{camera.key}": self._frame(obs, camera) for camera in self.spec.cameras}
        inputs["image_mask"] = torch.ones(1, len(self.spec.cameras), dtype=torch.bool)
        ids = cut_prompt(self.prompt_ids(obs), self.prompt_buckets[-1])
        inputs["tokens"], inputs["token_mask"] = pad_tokens(ids, self.prompt_buckets, self._tokenizer.pad_id)
        return inputs

    def _frame(self, obs: Observation, camera: CameraSpec) -> Tensor:
        """One camera frame [1, h, w, 3]: uint8 in its declared size, or resized here as its code base does it."""
        frame = obs.images[camera.key]
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
            raise ValueError(f"camera {camera.key}: {frame.dtype} {frame.shape} given, uint8 [h, w, 3] wanted")
        size = self.deployment.image_size
        frame = np.require(frame, requirements=("C", "W"))  # what torch takes without a copy
        if camera.key in self.options.frame_sizes:
            if frame.shape[:2] != (camera.height, camera.width):
                declared = f"{camera.height} x {camera.width}"
                raise ValueError(f"camera {camera.key}: {frame.shape[:2]} given, frame_sizes declares {declared}")
            return torch.from_numpy(frame)[None]
        if self.deployment.layout == "openpi":
            return torch.from_numpy(resize_frame_with_pad(frame, size))[None]
        image = resize_with_pad(unit_images(torch.from_numpy(frame)[None]), size)
        return image.permute(0, 2, 3, 1).contiguous()

    def pad_prompt(self, inputs: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Inputs with the prompt padded to the longer bucket `length`, so that robots can share a batch."""
        return lengthen_prompt(inputs, length, self._tokenizer.pad_id)

    # The network. Shapes are fixed and nothing asks the device for a value, so a graph can hold all of it.

    @torch.no_grad()
    def prepare_images(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Frames -> [B, C, 3, size, size] float32 in [-1, 1]; `images` if they were prepared before."""
        if "images" in inputs:
            return inputs["images"]
        size, antialias = self.deployment.image_size, self.deployment.layout == "openpi"
        frames = [unit_images(inputs[f"image.{camera.key}"]) for camera in self.spec.cameras]
        resized = [resize_with_pad(frame, size, antialias) for frame in frames]
        return torch.stack(resized, dim=1) * 2.0 - 1.0

    @torch.no_grad()
    def embed_prompt(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Token embeddings [B, T, D]; `prompt_embedding` if it was computed before, since its lifetime is PROMPT."""
        if "prompt_embedding" in inputs:
            return inputs["prompt_embedding"]
        return self.network.vlm.embed_prompt(inputs["tokens"])

    @torch.no_grad()
    def assemble_prefix(self, inputs: Mapping[str, Tensor]) -> PrefixTokens:
        """Images through the vision tower, prompt through the embedding, side by side."""
        images = self.network.vlm.embed_images(self.prepare_images(inputs))
        prompt = self.embed_prompt(inputs)
        per_image = inputs["image_mask"][:, :, None].expand(-1, -1, self.network.sizes.vision.tokens).flatten(1)
        mask = torch.cat((per_image, inputs["token_mask"]), dim=1)
        return PrefixTokens(torch.cat((images, prompt), dim=1), mask, (mask.cumsum(1) - 1).clamp(min=0))

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Prefix:
        """Inputs on the device -> keys and values of every layer, once per observation."""
        tokens = self.assemble_prefix(inputs)
        keys_values = self.network.vlm(tokens.embeddings, self.rotary(tokens.positions), tokens.mask)
        keys_values, mask = self.add_state(keys_values, tokens.mask, inputs)
        chunk = torch.arange(self.spec.action_horizon, device=mask.device)
        own = mask.new_ones(mask.shape[0], len(chunk))
        positions = mask.sum(1, keepdim=True) + chunk
        return Prefix(keys_values, torch.cat((mask, own), dim=1), self.rotary(positions))

    def init_latents(self, noise: Tensor) -> Tensor:
        """The models start from the noise itself."""
        return noise.float()

    @torch.no_grad()
    def hidden_state(self, prefix: Prefix, latents: Tensor, rows: Tensor) -> Tensor:
        """The expert's normalised output [B, H, D] for rows [B, H] of the time tables."""
        return self.network.expert(self.embed_actions(latents, rows), prefix, self.modulations(rows))

    @torch.no_grad()
    def denoise_step(self, prefix: Prefix, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity [B, H, A'] float32. `flow_time` [B, H] holds multiples of 1/N; 1 marks rows that are clean."""
        rows = table_rows(flow_time, self.spec.num_denoise_steps)
        hidden = self.hidden_state(prefix, latents, rows)
        return -self.network.expert.action_out(hidden.float())  # the model points from action to noise

    # After the network.

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Model space [H, A'] -> robot units [H, A]: cut the padding, un-normalise, add the state to relative dims."""
        actions = self.deployment.action.inverse(latents[:, : self.spec.action_dim])
        return (actions + self._anchor(obs)).astype(np.float32)

    def encode_actions(self, actions: FloatArray, obs: Observation) -> FloatArray:
        """Robot units [V, A] -> model space [V, A'] as seen from `obs`; the inverse of postprocess, padding zero.

        It re-anchors what is left of a chunk of relative actions to a new observation.
        """
        encoded = np.zeros((len(actions), self.spec.latent_dim), np.float32)
        encoded[:, : self.spec.action_dim] = self.deployment.action.forward(actions - self._anchor(obs))
        return encoded

    def _anchor(self, obs: Observation) -> np.ndarray:
        """[A] the state under relative dims, 0 under absolute ones."""
        anchor = np.zeros(self.spec.action_dim, self.deployment.action.dtype)
        indices = np.flatnonzero(self.deployment.relative)
        anchor[indices] = obs.state[indices]
        return anchor
