"""SmolVLA: a small vision-language model as prefix, a thinner expert of self- and cross-attention over it.

    token = W_out silu(W_in [action_in(x) ; features(t)] + b)

The time half of W_in is a STATIC table of N + 1 rows. Source: arXiv 2506.01844, huggingface/lerobot policies/smolvla.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from phyai_adapters._camera_policy import (
    COMMON_OPTIONS,
    CameraPolicy,
    Parts,
    check_observation,
    place,
    read_lerobot_folder,
)
from phyai_adapters._deployment import Options, choose_dtypes
from phyai_adapters._flow_time import model_times, table_rows, time_features
from phyai_adapters._lerobot import require
from phyai_adapters._processing import (
    cut_prompt,
    lengthen_prompt,
    pad_last,
    pad_tokens,
    resize_with_pad,
    unit_images,
)
from phyai_adapters._smolvla import Prefix, SmolNetwork, canonical_key, read_sizes
from phyai_adapters._smolvla_trace import recorded_inputs, trace
from phyai_adapters._stage import Stage
from phyai_adapters._tiny import read_tiny
from phyai_adapters._tokenizers import Tokenizer, find_tokens, open_tokenizer
from phyai_core.layers.rotary import Rotary, RotaryTable
from phyai_core.types import CameraSpec, Observation
from phyai_core.validity import Lifetime, Validity
from phyai_core.weights import Checkpoint, Progress, load_weights

PROMPTS_KEPT = 64  # tokenised texts remembered
OPTIONS = (*COMMON_OPTIONS, "cameras", "frame_sizes", "tokenizer", "image_tokens", "num_denoise_steps", "dtype")
AROUND_IMAGE, BEFORE_IMAGE = "<fake_token_around_image>", "<global-img>"
VARIANTS = {
    "attention_mode": ("cross_attn",),
    "num_expert_layers": (-1, 0),
    "adapt_to_pi_aloha": (False,),
    "use_delta_joint_actions_aloha": (False,),
    "n_obs_steps": (1,),
}


class PrefixTokens(NamedTuple):
    """The prefix before the language model; the state is its last token, in `positions` but not in `embeddings`."""

    embeddings: Tensor  # [B, P - 1, D]
    state: Tensor  # [B, 1, D]
    mask: Tensor  # bool [B, P - 1], True for real tokens
    positions: Tensor  # int64 [B, P]


class SmolVla(CameraPolicy):
    """Inputs: `image.<camera>` [B, h, w, 3], `image_mask` [B, C], `tokens` and `token_mask` [B, T], `state` [B, A']."""

    kind = "smolvla"
    allowed_options = OPTIONS
    lifetimes: ClassVar[Mapping[str, Lifetime]] = {
        "time_tables": Lifetime.STATIC,
        "prompt_embedding": Lifetime.PROMPT,
        "prefix": Lifetime.OBSERVATION,
        "velocity": Lifetime.STEP,
    }

    def __init__(self, parts: Parts, tokenizer: Tokenizer):
        super().__init__(parts)
        self._tokenizer = tokenizer
        self.encode_text = lru_cache(PROMPTS_KEPT)(lambda text: tuple(tokenizer.encode_marked(text)))
        self.prompt_buckets = (self.deployment.prompt_tokens,)
        self.vision = self.network.vlm.vision
        self.image_tokens = self._read_image_tokens()
        # With tokens around images, lerobot puts them round the absent cameras it was trained with too.
        self.empty_cameras = self.config["empty_cameras"] if self.image_tokens else 0
        per_image = self.network.sizes.image_tokens + (3 if self.image_tokens else 0)
        slots = len(self.spec.cameras) + self.empty_cameras
        positions = slots * per_image + self.deployment.prompt_tokens + 1 + self.spec.action_horizon
        self.rotary = RotaryTable(positions, self.network.sizes.vlm.head_dim, self.device)
        self._static = Validity(self.lifetimes)
        self._static.once("time_tables", self.compute_time_tables)

    @classmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> SmolVla:
        """Of a folder in lerobot layout."""
        config, deployment = read_lerobot_folder(cls.kind, folder, options)
        require(config, folder, **VARIANTS)
        weights, tiny = Checkpoint(folder), read_tiny(folder)
        shapes = {canonical_key(key): shape for key, shape in weights.shapes.items()}
        heads = tiny.get("vision", {}).get("num_attention_heads")
        sizes = read_sizes(shapes, config, heads, tiny.get("text", {}).get("head_dim", 64))
        spec = deployment.spec(sizes.latent_dim, options.rate_hz, folder)
        tokenizer = open_tokenizer(options.tokenizer, folder)
        network = place(SmolNetwork, device, sizes, choose_dtypes(options, device)[0])
        report = load_weights(
            weights, network.targets(), canonical=canonical_key, unused=network.unused(), progress=progress
        )
        return cls(Parts(spec, deployment, config, network, options, report), tokenizer)

    def _read_image_tokens(self) -> tuple[int, ...] | None:
        """(around, before) an image, where the checkpoint was trained with such tokens."""
        if not self.config.get("add_image_special_tokens", False):
            return None
        return find_tokens(self._tokenizer, (AROUND_IMAGE, BEFORE_IMAGE), self.options.image_tokens)

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors, B = 1. Raises ValueError for other cameras or another state length."""
        check_observation(self.spec, obs)
        inputs = {f"image.{camera.key}": self._frame(obs, camera) for camera in self.spec.cameras}
        inputs["image_mask"] = torch.ones(1, len(self.spec.cameras), dtype=torch.bool)
        inputs["state"] = pad_last(self.deployment.state.forward(obs.state), self.spec.latent_dim)
        ids = self.encode_text(obs.prompt if obs.prompt.endswith("\n") else obs.prompt + "\n")
        ids = cut_prompt(ids, self.prompt_buckets[-1])
        inputs["tokens"], inputs["token_mask"] = pad_tokens(ids, self.prompt_buckets, self._tokenizer.pad_id)
        return inputs

    def _frame(self, obs: Observation, camera: CameraSpec) -> Tensor:
        """One frame [1, h, w, 3]: uint8 where `frame_sizes` declares its size, else resized here."""
        frame = torch.from_numpy(obs.images[camera.key].copy())[None]
        if camera.key not in self.options.frame_sizes:
            return resize(unit_images(frame), self.deployment.image_size).permute(0, 2, 3, 1).contiguous()
        if frame.shape[1:3] != (camera.height, camera.width):
            declared = f"{camera.height} x {camera.width}"
            raise ValueError(f"camera {camera.key}: {frame.shape[1:3]} given, frame_sizes declares {declared}")
        return frame

    def pad_prompt(self, inputs: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Inputs with the prompt padded to `length`."""
        return lengthen_prompt(inputs, length, self._tokenizer.pad_id)

    # The network.

    @torch.no_grad()
    def compute_time_tables(self) -> Tensor:
        """[N + 1, D] float32: the time half of the mixing matrix on the time features, bias included."""
        mix, width = self.network.expert.mix_in, self.network.sizes.expert.width
        times = model_times(self.spec.num_denoise_steps, accumulate=False)
        features = time_features(times, width, self.deployment.periods).float().to(self.device)
        return linear(features, mix.weight[:, width:], mix.bias)

    @torch.no_grad()
    def prepare_images(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Frames -> [B, C, 3, size, size] float32 in [-1, 1]."""
        size = self.deployment.image_size
        frames = (unit_images(inputs[f"image.{camera.key}"]) for camera in self.spec.cameras)
        return torch.stack([resize(frame, size) for frame in frames], dim=1) * 2.0 - 1.0

    @torch.no_grad()
    def embed_prompt(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Token embeddings [B, T, D]; `prompt_embedding` if it was computed before."""
        if "prompt_embedding" in inputs:
            return inputs["prompt_embedding"]
        return self.network.vlm.embed_prompt(inputs["tokens"])

    @torch.no_grad()
    def assemble_prefix(self, inputs: Mapping[str, Tensor]) -> PrefixTokens:
        """Images through the vision tower, prompt through the embedding, the state behind them."""
        vlm = self.network.vlm
        images = vlm.embed_images(self.prepare_images(inputs))  # [B, C, T, D]
        mask = inputs["image_mask"][:, :, None].expand(images.shape[:3])
        if self.image_tokens is not None:
            images, mask = self._enclose(images, mask)
        embeddings = torch.cat((images.flatten(1, 2), self.embed_prompt(inputs)), dim=1)
        mask = torch.cat((mask.flatten(1), inputs["token_mask"]), dim=1)
        state = vlm.state_in(inputs["state"]).unsqueeze(1).to(vlm.dtype)
        positions = torch.cat((mask.cumsum(1) - 1, mask.sum(1, keepdim=True)), dim=1).clamp(min=0)
        return PrefixTokens(embeddings, state, mask, positions)

    def _enclose(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Two tokens before each image, one behind it; empty cameras are only these three."""
        images = torch.nn.functional.pad(images, (0, 0, 0, 0, 0, self.empty_cameras))
        mask = torch.nn.functional.pad(mask, (0, 0, 0, self.empty_cameras))
        around, before = (self.network.vlm.embedding[token] for token in self.image_tokens)
        start = torch.stack((around, before)).expand(*images.shape[:2], -1, -1)
        end = around.expand(*images.shape[:2], 1, -1)
        always = mask.new_ones(*mask.shape[:2], 2)
        return torch.cat((start, images, end), dim=2), torch.cat((always, mask, always[:, :, :1]), dim=2)

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Prefix:
        """Inputs on the device -> keys and values for every expert layer, once per observation."""
        tokens = self.assemble_prefix(inputs)
        keys_values = self.network.vlm(tokens.embeddings, tokens.state, self.rotary(tokens.positions), tokens.mask)
        key_mask = torch.cat((tokens.mask, tokens.mask.new_ones(len(tokens.mask), 1)), dim=1)
        chunk = torch.arange(self.spec.action_horizon, device=key_mask.device)
        causal = (chunk[None] <= chunk[:, None]).expand(len(key_mask), -1, -1)
        mask = torch.cat((key_mask[:, None].expand(-1, len(chunk), -1), causal), dim=2)
        positions = key_mask.sum(1, keepdim=True) + chunk
        restarted = Rotary(*(part.clone() for part in self.rotary(chunk.expand_as(positions))))
        return Prefix(self.network.expert.project(keys_values), key_mask, mask, self.rotary(positions), restarted)

    @torch.no_grad()
    def embed_actions(self, latents: Tensor, rows: Tensor) -> Tensor:
        """latents [B, H, A'] at rows [B, H] of the time tables -> action tokens [B, H, D] float32."""
        expert = self.network.expert
        tokens = expert.action_in(latents)
        mixed = linear(tokens, expert.mix_in.weight[:, : tokens.shape[-1]]) + self._static.read("time_tables")[rows]
        return expert.mix_out(silu(mixed))

    @torch.no_grad()
    def denoise_step(self, prefix: Prefix, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity [B, H, A'] float32. `flow_time` [B, H] holds multiples of 1/N; 1 marks rows that are clean."""
        rows = table_rows(flow_time, self.spec.num_denoise_steps)
        hidden = self.network.expert(self.embed_actions(latents, rows), prefix)
        return -self.network.expert.action_out(hidden.float())  # the model points from action to noise

    # Parity.

    def recorded_inputs(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Policy inputs as recorded behind lerobot's preprocessor -> inputs of this adapter."""
        return recorded_inputs(self, recorded)

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of one inference."""
        return trace(self, inputs, noise)


def resize(images: Tensor, size: int) -> Tensor:
    """[B, 3, h, w] in [0, 1] -> [B, 3, size, size]; what is missing is black, on the left and above."""
    return resize_with_pad(images, size, centred=False)
