"""GR00T N1.7: a Qwen3-VL backbone, an alternating diffusion transformer, one set of encoders per kind of robot.

Flow time runs as ours does, from 0 (noise) to 1 (action). Where a robot's chunk is shorter than the network's, the
rows behind it lie beside it in the latent: latent [H, n A'] is the network's [n H, A'].
Source: arXiv 2503.14734, NVIDIA/Isaac-GR00T.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from phyai_adapters._camera_policy import check_frame_sizes, check_observation, place
from phyai_adapters._deployment import Options, read_json, read_options, refuse_options
from phyai_adapters._flow_time import table_rows
from phyai_adapters._groot_files import Deployment, read_deployment
from phyai_adapters._groot_head import ActionHead, HeadSizes, Prefix
from phyai_adapters._processing import unit_images
from phyai_adapters._qwen3_text import TextSizes, read_text_sizes
from phyai_adapters._qwen3_vision import MERGE, VisionSizes, cut_patches, read_vision_sizes
from phyai_adapters._qwen3_vl import Qwen3Vl, count_positions
from phyai_adapters._stage import Stage
from phyai_adapters._tokenizers import Tokenizer, load_tokenizer
from phyai_core.adapter import Adapter
from phyai_core.types import FloatArray, Observation
from phyai_core.validity import Lifetime
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

OPTIONS = (
    *("rate_hz", "tokenizer", "image_tokens", "embodiment", "frame_sizes", "state_names", "action_names"),
    *("num_denoise_steps", "dtype"),
)
IMAGE_MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
UNUSED = ("backbone.language_model.norm.weight", "backbone.language_model.layers.*", "*lm_head.weight")
VISION = VisionSizes(1024, 24, 4096, 16, 2304, 16, 2, 2048, (5, 11, 17))
TEXT = TextSizes(2048, 16, 6144, 16, 8, 128, 151936, 1e-6, 5e6, (24, 20, 20))


class GrootNetwork(nn.Module):
    """Backbone and head."""

    def __init__(self, vision: VisionSizes, text: TextSizes, head: HeadSizes):
        super().__init__()
        self.backbone, self.action_head = Qwen3Vl(vision, text), ActionHead(head)


def canonical_key(key: str) -> str:
    return key.replace("backbone.model.model.", "backbone.").replace("backbone.model.", "backbone.")


def read_head_sizes(config: Mapping[str, Any]) -> HeadSizes:
    """Of a config.json."""
    dit, vlm = config["diffusion_model_cfg"], config["vl_self_attention_cfg"]
    return HeadSizes(
        features=config["backbone_embedding_dim"],
        hidden=config["hidden_size"],
        num_heads=dit["num_attention_heads"],
        head_dim=dit["attention_head_dim"],
        depth=dit["num_layers"],
        output=dit["output_dim"],
        self_heads=vlm["num_attention_heads"],
        self_dim=vlm["attention_head_dim"],
        self_depth=vlm["num_layers"],
        state_dim=config["max_state_dim"],
        latent_dim=config["max_action_dim"],
        embodiments=config["max_num_embodiments"],
        positions=config["max_seq_len"],
    )


class GrootParts(NamedTuple):
    """What an adapter holds."""

    deployment: Deployment
    config: Mapping[str, Any]
    network: GrootNetwork
    options: Options
    report: LoadReport


class Groot(Adapter):
    """Inputs: `image.<camera>` uint8 [B, h, w, 3], `text` and `text_mask` [B, T], `positions` [B, 3, T], `state`.

    T is the same for every prompt of one length only: the prompt is padded on the left to `prompt_tokens`.
    """

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
        self.marks = self._find_marks()
        with torch.no_grad():
            self.time_tables = network.action_head.tabulate(steps)

    @classmethod
    def load(
        cls,
        checkpoint: Path | None,
        device: torch.device,
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> Groot:
        """Read a checkpoint folder of Isaac-GR00T N1.7; `options` replaces its phyai.json.

        Raises ValueError naming the file, entry or option at fault.
        """
        if checkpoint is None or not Path(checkpoint).is_dir():
            raise ValueError(f"checkpoint: {checkpoint} is not a folder; groot needs the folder of a checkpoint")
        folder = Path(checkpoint)
        options = read_options(folder) if options is None else options
        refuse_options(options, "groot", OPTIONS)
        config = read_json(folder / "config.json")
        if config.get("model_type") != "Gr00tN1d7":
            raise ValueError(
                f"{folder / 'config.json'}: model_type is {config.get('model_type')!r}; supported: 'Gr00tN1d7' "
                "(GR00T N1.7); convert or fine-tune older checkpoints with Isaac-GR00T"
            )
        if options.rate_hz is None:
            raise ValueError(f'rate_hz: {folder} does not say its rate; write {{"rate_hz": <Hz>}} into phyai.json')
        deployment = read_deployment(folder, options)
        given = options.tokenizer
        tokenizer = load_tokenizer(given, folder) if given is None or isinstance(given, str) else given
        network, report = _load_network(folder, config, device, options.dtype, progress)
        return cls(GrootParts(deployment, config, network, options, report), tokenizer)

    def _find_marks(self) -> tuple[int, int, int]:
        """Ids of the tokens before, of and behind an image."""
        find = getattr(self._tokenizer, "find", lambda token: None)
        ids = tuple(self.options.image_tokens or (find(mark) for mark in IMAGE_MARKS))
        if None in ids or len(ids) != 3:
            raise ValueError(
                f"image_tokens: the tokenizer has no {', '.join(IMAGE_MARKS)}; use Qwen3-VL's, or write their ids "
                'as {"image_tokens": [<before>, <image>, <behind>]} into phyai.json'
            )
        return ids

    # Before the network.

    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors, B = 1. Raises ValueError for other cameras, frame sizes or state length."""
        check_observation(self.spec, obs)
        check_frame_sizes(self.spec, obs)
        images = {f"image.{c.key}": torch.from_numpy(self._prepare(obs.images[c.key]))[None] for c in self.spec.cameras}
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

    def _prepare(self, frame: np.ndarray) -> np.ndarray:
        """Letter-box where asked for, scale the shorter edge, cut the centre, scale again, then to whole tokens."""
        if self.deployment.letter_box and frame.shape[0] != frame.shape[1]:
            missing = max(frame.shape[:2]) - np.array(frame.shape[:2])
            frame = np.pad(frame, [(part // 2, part - part // 2) for part in missing] + [(0, 0)])
        frame = _scale_shorter(frame, self.deployment.shortest_edge)
        height, width = (max(1, int(part * self.deployment.crop_fraction)) for part in frame.shape[:2])
        top, left = (frame.shape[0] - height) // 2, (frame.shape[1] - width) // 2
        frame = _scale_shorter(frame[top : top + height, left : left + width], self.deployment.shortest_edge)
        unit = self.vision.sizes.patch * MERGE
        size = [max(1, round(part / unit)) * unit for part in frame.shape[:2]]
        if size == list(frame.shape[:2]):
            return np.ascontiguousarray(frame)
        x = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None].float()
        x = interpolate(x, size=size, mode="bicubic", antialias=True).round().clamp(0, 255)
        return x[0].permute(1, 2, 0).to(torch.uint8).numpy()

    def _tokens(self, prompt: str, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The chat template around images and task: ids and mask [1, T], padded on the left."""
        text = re.sub(r"[^\w\s]", "", prompt.lower()) if self.deployment.clean_text else prompt
        before, image, behind = self.marks
        picture = (before, *[image] * (grid[0] * grid[1] // MERGE**2), behind)
        head, tail = self.encode_text("<|im_start|>user\n"), self.encode_text("<|im_end|>\n")
        task = self.encode_text(text)[: self.prompt_tokens]
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
        """Network inputs as recorded -> inputs of this adapter. All images have one size."""
        text, mask = recorded["input_ids"], recorded["attention_mask"].bool()
        _, rows, columns = recorded["image_grid_thw"][0].tolist()
        images = len(recorded["image_grid_thw"]) // len(text)
        return {
            "text": text,
            "text_mask": mask,
            "feature_mask": torch.ones_like(mask),  # recorded with padding that was not masked there
            "positions": count_positions(text, mask, self.marks[1], (rows // MERGE, columns // MERGE)),
            "patches": recorded["pixel_values"].reshape(len(text), images, rows * columns, -1),
            "grid": torch.zeros(len(text), rows, columns),
            "state": recorded["state"],
            "embodiment": recorded["embodiment_id"],
        }

    @torch.no_grad()
    def trace(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Iterator[Stage]:
        """Named values of one inference."""
        head, steps = self.network.action_head, self.spec.num_denoise_steps
        yield Stage("backbone.image_mask", inputs["text"] == self.marks[1])
        features = self.see(inputs)
        yield Stage("backbone.features(pre-final-norm, layer select_layer)", features)
        seen = head.attend_features(features, inputs["feature_mask"])
        yield Stage("vl_features(after vlln + vl_self_attention)", seen)
        prefix, x = self.encode_prefix(inputs), noise
        yield Stage("state_features", prefix.state)
        first = torch.zeros(len(noise), dtype=torch.int64, device=noise.device)
        tokens = head.embed_actions(prefix, self.unfold(x)[:, : self.rows], self.time_tables.features[first])
        yield Stage("step0.action_features", tokens)
        for index, hidden in enumerate(head.hidden(prefix, self.unfold(x)[:, : self.rows], self.time_tables, first)):
            yield Stage(f"step0.dit.hidden.{index}", hidden)
        for step in range(steps):
            velocity = self.denoise_step(prefix, x, torch.full(x.shape[:2], step / steps, device=x.device))
            yield Stage(f"step{step}.velocity", velocity)
            x = x + velocity / steps
        yield Stage("action_pred", x)


def _scale_shorter(frame: np.ndarray, edge: int) -> np.ndarray:
    ratio = edge / min(frame.shape[:2])
    height, width = (round(part * ratio) for part in frame.shape[:2])
    if (height, width) == frame.shape[:2]:
        return frame
    import cv2  # only frames of another size need it

    return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)


def _load_network(folder: Path, config, device: torch.device, dtype: str | None, progress: Progress | None):
    vision = read_vision_sizes(config["qwen3_vl_vision"]) if "qwen3_vl_vision" in config else VISION
    depth = config["select_layer"]
    text = read_text_sizes(config["qwen3_vl_text"], depth) if "qwen3_vl_text" in config else replace(TEXT, depth=depth)
    network = place(GrootNetwork, device, vision, text, read_head_sizes(config))
    network.to(getattr(torch, dtype or ("bfloat16" if device.type == "cuda" else "float32")))
    targets = network.state_dict()
    key = "backbone.visual.patch_embed.proj.weight"
    targets[key] = targets[key].view(-1, 3, vision.frames, vision.patch, vision.patch)
    report = load_weights(Checkpoint(folder), targets, canonical=canonical_key, unused=UNUSED, progress=progress)
    return network, report
