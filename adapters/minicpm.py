"""MiniCPM-Robot: MiniCPM-V 4.6 as backbone, and an action head that can be exchanged.

What is public, and what it is verified against:

    backbone      transformers' code; compared with recordings of it
    image size, order of images and text, widths of state and chunk      the vendor's inference script
    chat template round them      written after transformers' processor; no recording was at hand
    action head   published with the weights only; `ReferenceHead` is built after a description of a relative
    units of state and actions    not published; numbers pass unchanged

So parity with the released policy is not claimed. Source: OpenBMB/MiniCPM-Robot, huggingface/transformers
models/minicpmv4_6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phyai_adapters._camera_policy import CameraPolicy, Parts, check_observation
from phyai_adapters._deployment import Options
from phyai_adapters._flow_time import table_rows
from phyai_adapters._minicpm_files import (
    IMAGE_SIZE,
    MiniCpmNetwork,
    choose_embodiment,
    load_backbone,
    make_deployment,
    make_spec,
    read_config,
)
from phyai_adapters._minicpm_head import ReferenceHead
from phyai_adapters._minicpm_trace import recorded_inputs, trace
from phyai_adapters._minicpm_v import count_text, cut_rows
from phyai_adapters._processing import cut_prompt, pad_last, pad_tokens, unit_images
from phyai_adapters._stage import Stage
from phyai_adapters._tokenizers import Tokenizer, find_tokens, open_tokenizer
from phyai_adapters.action_heads import find_head
from phyai_core.types import Observation
from phyai_core.validity import Lifetime
from phyai_core.weights import Progress

OPTIONS = (
    *("rate_hz", "tokenizer", "image_tokens", "cameras", "state_names", "action_names"),
    *("embodiment", "action_head", "dtype"),
)
AROUND_IMAGE = ("<image>", "</image>")
MERGED = 16  # patches of one image token


class MiniCpm(CameraPolicy):
    """Inputs: `image.<camera>` uint8 [B, s, s, 3], `text` and `text_mask` [B, T], `state` [B, S'], `embodiment` [B].

    The prompt is padded behind its end to `prompt_tokens`, where no real token sees it.
    """

    kind = "minicpm"
    allowed_options = OPTIONS
    # Where a delta layer reads nearly nothing from its memory, the norm behind it makes rounding large: two orders of
    # the same sums differ by 1.5e-4.
    rounding = 2e-4
    lifetimes: ClassVar[Mapping[str, Lifetime]] = {
        "time_tables": Lifetime.STATIC,
        "prefix": Lifetime.OBSERVATION,
        "velocity": Lifetime.STEP,
    }

    def __init__(self, parts: Parts, tokenizer: Tokenizer):
        super().__init__(parts)
        self._tokenizer = tokenizer
        self.encode_text = lru_cache(64)(lambda text: tuple(tokenizer.encode(text)))
        self.head = self.network.action_head
        self.vision = self.network.backbone.vision_tower
        self.embodiment = choose_embodiment(self.options, self.head)
        before, behind = find_tokens(tokenizer, AROUND_IMAGE, self.options.image_tokens)
        self.image_token = self.config["image_token_id"]
        self.picture = (before, *[self.image_token] * (self.grid[0] * self.grid[1] // MERGED), behind)
        self.head.tabulate()

    @classmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> MiniCpm:
        """Of a folder of MiniCPM-V 4.6 with an action head."""
        config = read_config(folder)
        tokenizer = open_tokenizer(options.tokenizer, folder)
        head_class = find_head(options.action_head, folder) if options.action_head else ReferenceHead
        given = None if options.dtype is None else getattr(torch, options.dtype)
        head = head_class.load(folder, config["text_config"]["hidden_size"], device, given)
        deployment = make_deployment(options, head, config.get("image_size", IMAGE_SIZE), "MiniCPM-V 4.6 and a head")
        spec = make_spec(deployment, head, options.rate_hz, folder)
        dtype = given or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        backbone, report = load_backbone(folder, config, device, dtype, progress)
        return cls(Parts(spec, deployment, config, MiniCpmNetwork(backbone, head), options, report), tokenizer)

    @property
    def prompt_tokens(self) -> int:
        """Longest task, beside images and template."""
        return self.deployment.prompt_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of an image."""
        side = self.deployment.image_size // self.vision.sizes.patch
        return side, side

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors, B = 1. Raises ValueError for other cameras or another state length."""
        check_observation(self.spec, obs)
        images = {f"image.{c.key}": self._frame(obs.images[c.key]) for c in self.spec.cameras}
        text, mask = self._tokens(obs.prompt)
        state = pad_last(obs.state, self.head.state_dim)
        return {
            **images,
            "text": text,
            "text_mask": mask,
            "state": state,
            "embodiment": torch.tensor([self.embodiment]),
        }

    def _frame(self, frame: NDArray[np.uint8]) -> Tensor:
        """[h, w, 3] -> [1, s, s, 3], stretched as in training: bicubic, by Pillow."""
        size = (self.deployment.image_size,) * 2
        if frame.shape[:2] != size:
            from PIL import Image  # only frames of another size need it

            frame = np.asarray(Image.fromarray(frame).resize(size))
        return torch.from_numpy(frame.copy())[None]

    def _tokens(self, prompt: str) -> tuple[Tensor, Tensor]:
        """The chat template round images and task: ids and mask [1, T]."""
        head, tail = (self.encode_text(part) for part in ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"))
        longest, pictures = self.prompt_tokens, self.picture * len(self.spec.cameras)
        ids = (*head, *pictures, *cut_prompt(self.encode_text(prompt), longest), *tail)
        return pad_tokens(ids, [len(head) + len(pictures) + longest + len(tail)], self._tokenizer.pad_id)

    # The network.

    @torch.no_grad()
    def see(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Inputs on the device -> embeddings of text and images [B, T, D]."""
        backbone, frames = self.network.backbone, [inputs[f"image.{camera.key}"] for camera in self.spec.cameras]
        images = unit_images(torch.stack(frames, dim=1).flatten(0, 1)) * 2.0 - 1.0
        patches = cut_rows(images, self.vision.sizes.patch).to(backbone.language_model.embed_tokens.weight.dtype)
        seen = backbone.see(patches, self.grid).unflatten(0, (-1, len(frames))).flatten(1, 2)
        return backbone.embed(inputs["text"], inputs["text"] == self.image_token, seen)

    @torch.no_grad()
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Any:
        """Inputs on the device -> what the head makes of the backbone's features, once per observation."""
        x = self.see(inputs)
        features, _ = self.network.backbone.language_model(x, count_text(0, x.shape[1], len(x), x.device))
        return self.head.prepare(features, inputs["text_mask"], inputs["state"], inputs["embodiment"])

    @torch.no_grad()
    def predict(self, prefix: Any, noise: Tensor) -> Tensor:
        """The chunk [B, H, A'] float32, of heads without denoise steps."""
        return self.head.sample(prefix, noise).float()

    @torch.no_grad()
    def predict_onto(self, prefix: Any, noise: Tensor, leftover: Tensor, frozen: Tensor) -> Tensor:
        """As `predict`, led onto the frozen rows of the leftover, of heads that can be."""
        return self.head.sample(prefix, noise, leftover, frozen).float()

    @torch.no_grad()
    def denoise_step(self, prefix: Any, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity [B, H, A'] float32, of heads with denoise steps; flow time is the same for all rows."""
        return self.head.velocity(prefix, latents, table_rows(flow_time[:, -1], self.spec.num_denoise_steps)).float()

    # Parity.

    def recorded_inputs(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs of the backbone as recorded with transformers -> inputs of this adapter."""
        return recorded_inputs(self, recorded)

    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of one inference."""
        return trace(self, inputs, noise)
