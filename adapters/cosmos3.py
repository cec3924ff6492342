"""Cosmos3-Nano-Policy-DROID: a world-action model, which denoises the video to come and the chunk together.

Given are the present picture, the text, the present state as a clean row in front of the actions (and, with `history`,
states before it). The sampler is UniPC, which corrects each step by the ones before it: no velocity per step, so it is
not the runtime's affine update but a prediction. Of the modes of RTC it can be tied by `hard`: frozen rows are put back
on their line after every step. Source: NVIDIA cosmos-framework, huggingface/diffusers Cosmos3OmniTransformer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from phyai_adapters import _cosmos3_trace
from phyai_adapters._camera_policy import check_observation
from phyai_adapters._cosmos3 import Context
from phyai_adapters._cosmos3_canvas import compose, fill_video_frame
from phyai_adapters._cosmos3_files import WIDTH, Deployment, read_deployment
from phyai_adapters._cosmos3_sampler import CosmosSampler, Frozen
from phyai_adapters._cosmos3_text import TextEncoder, caption
from phyai_adapters._cosmos3_weights import CosmosNetwork, load_network
from phyai_adapters._deployment import Options, choose_dtypes
from phyai_adapters._folder_adapter import FolderAdapter
from phyai_adapters._processing import lengthen_prompt, pad_tokens
from phyai_adapters._stage import Stage
from phyai_adapters._tokenizers import Tokenizer, open_tokenizer
from phyai_adapters._wan_vae import LatentUnits
from phyai_core.layers.resnet import exact_convolutions
from phyai_core.types import FloatArray, Observation
from phyai_core.validity import Lifetime
from phyai_core.weights import LoadReport, Progress

OPTIONS = (
    *("rate_hz", "tokenizer", "image_tokens", "state_names", "action_names", "action_horizon", "num_denoise_steps"),
    *("prompt_buckets", "dtype", "vision_dtype", "video_size", "history", "guidance", "schedule", "flow_shift"),
    *("prompt_format", "video_decoder"),
)
PROMPT_BUCKETS = (192, 512)
TILE, OVERLAP = 16, 4  # of the decoder, in latents


class CosmosParts(NamedTuple):
    """What an adapter holds."""

    deployment: Deployment
    network: CosmosNetwork
    options: Options
    report: LoadReport


class Prefix(NamedTuple):
    """What all steps of one sample read: the texts, the present picture as a latent, the rows up to the present."""

    context: Context
    frame: Tensor  # [B, C, h, w]
    rows: Tensor  # [B, K, A]


class Cosmos3(FolderAdapter):
    """Inputs: `canvas` uint8 [B, h, w, 3], `state` [B, K, A'], `tokens` and `token_mask` [B, T], and `empty_tokens`,
    `empty_mask` [B, T'], the same without a task. A' are joints and gripper, as long as the robot's actions.
    """

    kind = "cosmos3"
    allowed_options = OPTIONS
    lifetimes: ClassVar[Mapping[str, Lifetime]] = {
        "prompt_embedding": Lifetime.PROMPT,
        "prefix": Lifetime.OBSERVATION,
    }

    def __init__(self, parts: CosmosParts, tokenizer: Tokenizer):
        self.deployment, self.network, self.options, self.report = parts
        transformer, deployment = self.network.transformer, self.deployment
        self.vision, self.device = self.network.encoder, transformer.proj_in.weight.device
        self.spec = deployment.spec(transformer.sizes.channels)
        scene = deployment.scene(transformer.sizes.patch)
        self.sampler = CosmosSampler(transformer, scene, WIDTH, deployment.sigmas, deployment.guidance)
        self.units = LatentUnits.of(self.network.encoder.sizes, self.device)
        chosen = tuple(self.options.prompt_buckets)
        self.prompt_buckets = PROMPT_BUCKETS if chosen == Options.prompt_buckets else chosen
        self.text = TextEncoder(tokenizer, self.options.image_tokens, self.prompt_buckets[-1])

    @classmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> Cosmos3:
        """Of a folder in the layout of diffusers."""
        deployment, given = read_deployment(folder, options), options.tokenizer
        tokenizer = open_tokenizer(given, folder if given else folder / "text_tokenizer")
        dtypes = choose_dtypes(options, device)
        network, report = load_network(folder, device, dtypes, options.video_decoder, progress)
        return cls(CosmosParts(deployment, network, options, report), tokenizer)

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation and its history -> CPU tensors, B = 1. A history that is too short begins with copies.

        Raises ValueError for other cameras or another state length. Frames may have any size.
        """
        steps, deployment = self.spec.observation_steps, self.deployment
        seen = [*obs.history, obs][-steps:]
        seen = [seen[0]] * (steps - len(seen)) + seen
        for one in seen:
            check_observation(self.spec, one)
        canvas = compose([obs.images[camera.key] for camera in self.spec.cameras], deployment.video_size)
        states = torch.from_numpy(np.stack([_flip_gripper(one.state) for one in seen]))
        size = deployment.action_horizon, deployment.rate_hz, deployment.video_size
        task = self.text.encode(caption(obs.prompt, *size, deployment.json_prompt))
        tokens, mask = pad_tokens(task, self.prompt_buckets, self.text.pad_id)
        empty = torch.tensor([self.text.encode("")])
        return {
            "canvas": canvas[None],
            "state": states[None],
            "tokens": tokens,
            "token_mask": mask,
            "empty_tokens": empty,
            "empty_mask": torch.ones_like(empty, dtype=torch.bool),
        }

    def pad_prompt(self, inputs: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Inputs with the prompt padded to `length`."""
        return lengthen_prompt(inputs, length, self.text.pad_id)

    # The network.

    @torch.no_grad()
    def embed_prompt(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Keys and values of the texts, [B, n, N, 2, L, M, K] with n = spec.branches."""
        if "prompt_embedding" in inputs:
            return inputs["prompt_embedding"]
        texts = self.network.transformer.read(self._branches(inputs["tokens"], inputs["empty_tokens"]))
        return texts.unflatten(0, (self.spec.branches, -1)).transpose(0, 1).contiguous()

    def _branches(self, given: Tensor, empty: Tensor) -> Tensor:
        """[n B, L] the task, and with guidance the same without it, filled up behind its end."""
        if self.spec.branches == 1:
            return given
        return torch.cat((given, pad(empty, (0, given.shape[1] - empty.shape[1]))))

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Prefix:
        """Inputs on the device -> what every step reads. `frame` may be given: the picture as a latent."""
        frame = inputs["frame"] if "frame" in inputs else self.see(inputs["canvas"])
        texts = self.embed_prompt(inputs).transpose(0, 1).flatten(0, 1)
        mask = self._branches(inputs["token_mask"], inputs["empty_mask"])
        context = self.network.transformer.place(texts, mask, self.sampler.scene)
        width = self.network.transformer.sizes.action_dim
        return Prefix(context, frame, pad(inputs["state"], (0, width - WIDTH)))

    def see(self, canvas: Tensor) -> Tensor:
        """Canvases uint8 [B, h, w, 3] -> latents [B, C, h / 16, w / 16]."""
        encoder, frame = self.network.encoder, fill_video_frame(canvas, self.deployment.video_size)
        with exact_convolutions():
            latent = encoder(frame.to(encoder.quant_conv.weight.dtype))
        return self.units.normalise(latent.float())

    def predict(self, prefix: Prefix, noise: Tensor) -> Tensor:
        """The chunk [B, H, A'] from the noise of the rows and, behind it, of the video."""
        return self.sample(prefix, noise)[1]

    def predict_onto(self, prefix: Prefix, noise: Tensor, leftover: Tensor, frozen: Tensor) -> Tensor:
        """As `predict`, with frozen rows put back on the line to the leftover after every step."""
        known, extra = self.sampler.scene.clean_rows, self.network.transformer.sizes.action_dim - WIDTH
        rows = noise[:, : self.spec.action_horizon]
        stream = (pad(part, (0, extra, known, 0)) for part in (leftover, frozen, rows))
        return self.sample(prefix, noise, Frozen(*stream))[1]

    @torch.no_grad()
    def sample(self, prefix: Prefix, noise: Tensor, frozen: Frozen | None = None) -> tuple[Tensor, Tensor]:
        """Latents of the video [B, C, F, h, w] and the chunk [B, H, A']."""
        video, actions = self.start(prefix, noise)
        return self.sampler.sample(prefix.context, video, actions, frozen)

    def start(self, prefix: Prefix, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Noise [B, *spec.noise_shape] -> video [B, C, F, h, w] and rows [B, R, A] with what is known in front."""
        horizon, extra = self.spec.action_horizon, prefix.rows.shape[-1] - WIDTH
        actions = torch.cat((prefix.rows, pad(noise[:, :horizon], (0, extra))), dim=1)
        channels, height, width = prefix.frame.shape[1:]
        frames = self.sampler.scene.grid[0] - 1
        pixels = noise[:, horizon:].flatten(1)[:, : channels * frames * height * width]
        later = pixels.view(len(noise), channels, frames, height, width)
        return torch.cat((prefix.frame[:, :, None], later), dim=2), actions

    # After the network.

    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Model space [H, A'] -> robot units [H, A]."""
        return _flip_gripper(latents)

    def encode_actions(self, actions: FloatArray, obs: Observation) -> FloatArray:
        """Robot units [V, A] -> model space [V, A']: the inverse of `postprocess`."""
        return _flip_gripper(actions)

    @torch.no_grad()
    def predict_video(self, obs: Observation, noise: Tensor, tile: int | None = TILE) -> NDArray[np.uint8]:
        """What the policy expects to see, [F, H, W, 3]; `noise` as for a chunk, `tile` in latents (None: at once).

        Raises ValueError where the decoder was not loaded.
        """
        if self.network.decoder is None:
            raise ValueError('video_decoder: not loaded; write {"video_decoder": true} into phyai.json')
        inputs = {name: tensor.to(self.device) for name, tensor in self.preprocess(obs).items()}
        video, _ = self.sample(self.encode_prefix(inputs), noise.to(self.device))
        decoder = self.network.decoder
        latents = self.units.restore(video).to(decoder.post_quant_conv.weight.dtype)
        with exact_convolutions():
            frames = decoder(latents) if tile is None else decoder.decode_tiled(latents, tile, min(OVERLAP, tile - 1))
        return ((frames[0].float() + 1.0) * 127.5).permute(1, 2, 3, 0).to(torch.uint8).cpu().numpy()

    # Parity.

    def recorded_inputs(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Token ids, latents and noise as recorded -> inputs of this adapter."""
        return _cosmos3_trace.recorded_inputs(self, recorded)

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of the recorded samples; the last is the chunk of the DROID policy."""
        return _cosmos3_trace.trace(self, inputs, noise)


def _flip_gripper(rows: FloatArray) -> FloatArray:
    """[.., A] joints as they are; the gripper counts the other way in the model."""
    flipped = np.array(rows, np.float32)
    flipped[..., -1] = 1.0 - flipped[..., -1]
    return flipped
