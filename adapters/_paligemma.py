"""The network that pi0 and pi0.5 share: SigLIP, projector and Gemma encode the prefix; a Gemma expert denoises actions.

Sequence: [camera 0 | camera 1 | ... | prompt]. Every token of the prefix sees every valid one, action tokens see the
prefix and each other, so one mask over the keys says all. Absent cameras and padding take no positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phyai_core.layers.fp8 import Fp8Linear
from phyai_core.layers.gemma import GemmaLayer, GemmaSizes, KeysValues, Modulation
from phyai_core.layers.norm import AdaRMSNorm, RMSNorm
from phyai_core.layers.rotary import Rotary
from phyai_core.layers.siglip import SiglipSizes, SiglipTower

ROOT = "paligemma_with_expert."
VISION = ROOT + "paligemma.model.vision_tower."
PROJECTOR = ROOT + "paligemma.model.multi_modal_projector.linear."
LANGUAGE = ROOT + "paligemma.model.language_model."
LM_HEAD = ROOT + "paligemma.lm_head.weight"
EXPERT = ROOT + "gemma_expert.model."


@dataclass(frozen=True)
class PiSizes:
    """Sizes of the whole network."""

    vision: SiglipSizes
    vlm: GemmaSizes
    expert: GemmaSizes
    vocab: int
    latent_dim: int = 32  # A', also the width of pi0's padded state


FULL = PiSizes(
    vision=SiglipSizes(1152, 27, 4304, 16, image_size=224),
    vlm=GemmaSizes(2048, 18, 16384, 8, 1, 256),
    expert=GemmaSizes(1024, 18, 4096, 8, 1, 256),
    vocab=257152,
)
TINY = PiSizes(
    vision=SiglipSizes(48, 2, 96, 4, image_size=56),
    vlm=GemmaSizes(64, 3, 128, 8, 1, 16),
    expert=GemmaSizes(64, 3, 64, 8, 1, 16),
    vocab=320,
)


def canonical_key(key: str, kind: str) -> str:
    """Key of a file -> our key: no leading `model.`, no `vision_model.`, time MLP named by the kind of model."""
    key = key.removeprefix("model.").replace(".vision_tower.vision_model.", ".vision_tower.")
    if key.startswith(("time_mlp_", "action_time_mlp_")):
        key = key.removeprefix("action_")
        return key if kind == "pi05" else "action_" + key
    return key


def read_sizes(shapes: Mapping[str, Sequence[int]], vision_heads: int = 16) -> PiSizes:
    """The sizes a checkpoint has, from the shapes under canonical keys. One KV head, as in every Gemma used so far."""

    def shape(key: str) -> Sequence[int]:
        if key not in shapes:
            raise ValueError(f"checkpoint: {key} is missing; these are not the weights of a pi0 or pi0.5 policy")
        return shapes[key]

    def gemma(prefix: str) -> GemmaSizes:
        mlp, width = shape(prefix + "layers.0.mlp.gate_proj.weight")
        head_dim = shape(prefix + "layers.0.self_attn.k_proj.weight")[0]
        heads = shape(prefix + "layers.0.self_attn.q_proj.weight")[0] // head_dim
        return GemmaSizes(width, _depth(shapes, prefix + "layers."), mlp, heads, 1, head_dim)

    width, _, patch, _ = shape(VISION + "embeddings.patch_embedding.weight")
    side = math.isqrt(shape(VISION + "embeddings.position_embedding.weight")[0])
    mlp = shape(VISION + "encoder.layers.0.mlp.fc1.weight")[0]
    depth = _depth(shapes, VISION + "encoder.layers.")
    vision = SiglipSizes(width, depth, mlp, vision_heads, side * patch, patch)
    vocab = shapes.get(LANGUAGE + "embed_tokens.weight") or shape(LM_HEAD)
    return PiSizes(vision, gemma(LANGUAGE), gemma(EXPERT), vocab[0], shape("action_in_proj.weight")[1])


def _depth(shapes: Mapping[str, Sequence[int]], prefix: str) -> int:
    return 1 + max(int(key[len(prefix) :].split(".")[0]) for key in shapes if key.startswith(prefix))


class Prefix(NamedTuple):
    """What every denoise step reads; lifetime OBSERVATION."""

    keys_values: tuple[KeysValues, ...]  # per expert layer, [B, P, M, K] each
    key_mask: Tensor  # bool [B, P + H]: what an action token may see, its own chunk included
    rotary: Rotary  # of the action tokens, [B, H, 1, K/2]


class PaliGemma(nn.Module):
    """Images and prompt -> keys and values of every layer."""

    def __init__(self, sizes: PiSizes, dtype: torch.dtype, vision_dtype: torch.dtype):
        super().__init__()
        self.sizes, self.dtype = sizes, dtype
        width, depth = sizes.vlm.width, sizes.vlm.depth
        self.vision = SiglipTower(sizes.vision, vision_dtype)
        self.projector = nn.Linear(sizes.vision.width, width, dtype=vision_dtype)
        self.embedding = nn.Parameter(torch.empty(sizes.vocab, width, dtype=dtype))
        self.layers = nn.ModuleList(GemmaLayer(sizes.vlm, dtype, last=index == depth - 1) for index in range(depth))

    def embed_images(self, images: Tensor) -> Tensor:
        """[B, C, 3, h, w] in [-1, 1] -> [B, C T, D], cameras as one batch."""
        tokens = self.projector(self.vision(images.flatten(0, 1)))
        return tokens.reshape(images.shape[0], -1, tokens.shape[-1]).to(self.dtype)

    def embed_prompt(self, tokens: Tensor) -> Tensor:
        """int64 [B, T] -> [B, T, D]."""
        return self.embedding[tokens] * math.sqrt(self.embedding.shape[-1])

    def forward(self, x: Tensor, rotary: Rotary, key_mask: Tensor) -> tuple[KeysValues, ...]:
        """x [B, P, D], key_mask bool [B, P] -> keys and values per layer."""
        kept = []
        for layer in self.layers:
            x, own = layer(x, rotary, key_mask)
            kept.append(own)
        return tuple(kept)


class ActionExpert(nn.Module):
    """Expert tokens over a prefix. Projections of actions stay float32; `adaptive` norms follow flow time (pi0.5)."""

    def __init__(self, sizes: PiSizes, dtype: torch.dtype, adaptive: bool):
        super().__init__()
        width = sizes.expert.width
        self.dtype = dtype
        self.layers = nn.ModuleList(GemmaLayer(sizes.expert, dtype, adaptive) for _ in range(sizes.expert.depth))
        self.norm = AdaRMSNorm() if adaptive else RMSNorm(width)
        self.action_in = nn.Linear(sizes.latent_dim, width, dtype=torch.float32)
        self.action_out = nn.Linear(width, sizes.latent_dim, dtype=torch.float32)

    def forward(self, x: Tensor, prefix: Prefix, modulations: Sequence[Tensor] | None = None) -> Tensor:
        """Action tokens x [B, H, D] -> normalised hidden state [B, H, D].

        `modulations` [B, H, 3 D]: two per layer, then one for the final norm.
        """
        x = x.to(self.dtype)
        for index, (layer, past) in enumerate(zip(self.layers, prefix.keys_values, strict=True)):
            pair = None if modulations is None else Modulation(*modulations[2 * index : 2 * index + 2])
            x, _ = layer(x, prefix.rotary, prefix.key_mask, past, pair)
        return self.norm(x, None if modulations is None else modulations[-1])[0]


class PiNetwork(nn.Module):
    """Both parts; a kind of model adds what it does with flow time (and state). Built without memory, then placed."""

    adaptive: bool
    kind: str

    def __init__(self, sizes: PiSizes, dtype: torch.dtype, vision_dtype: torch.dtype):
        super().__init__()
        self.sizes = sizes
        self.vlm = PaliGemma(sizes, dtype, vision_dtype)
        self.expert = ActionExpert(sizes, dtype, self.adaptive)

    @classmethod
    def empty(
        cls,
        sizes: PiSizes,
        device: torch.device,
        dtype: torch.dtype,
        vision_dtype: torch.dtype,
        fp8_prefix: bool = False,
    ) -> PiNetwork:
        """A network on `device` whose weights are not yet set; `fp8_prefix`: as after `round_prefix`."""
        with torch.device("meta"):
            network = cls(sizes, dtype, vision_dtype)
            if fp8_prefix:
                network.round_prefix()
        return network.to_empty(device=device).requires_grad_(False)

    def round_prefix(self) -> None:
        """Large products of the prefix in FP8, weights rounded once (the scheme fp8-prefix); the expert stays."""
        for layer in self.vlm.layers:
            layer.round_to_fp8()

    def targets(self) -> dict[str, Tensor]:
        """{canonical key: tensor or view to fill} for every weight this network uses."""
        vision, expert = self.vlm.vision, self.expert
        patch = self.sizes.vision.patch_size
        found = {
            VISION + "embeddings.patch_embedding.weight": vision.patch.weight.view(-1, 3, patch, patch),
            VISION + "embeddings.patch_embedding.bias": vision.patch.bias,
            VISION + "embeddings.position_embedding.weight": vision.position,
            **named(VISION + "post_layernorm.", vision.norm),
            **named(PROJECTOR, self.vlm.projector),
            LANGUAGE + "embed_tokens.weight": self.vlm.embedding,
            **named("action_in_proj.", expert.action_in),
            **named("action_out_proj.", expert.action_out),
            **({} if self.adaptive else named(EXPERT + "norm.", expert.norm)),
        }
        for index, block in enumerate(vision.blocks):
            found.update(siglip_targets(f"{VISION}encoder.layers.{index}.", block))
        for prefix, layers in ((LANGUAGE, self.vlm.layers), (EXPERT, expert.layers)):
            for index, layer in enumerate(layers):
                found.update(_gemma_targets(f"{prefix}layers.{index}.", layer))
        return found

    def unused(self) -> list[str]:
        """Glob patterns of weights that files may hold and this network does not need."""
        last = f"{LANGUAGE}layers.{self.sizes.vlm.depth - 1}."
        parts = ("self_attn.q_proj.*", "self_attn.o_proj.*", "mlp.*", "post_attention_layernorm.*")
        heads = (LM_HEAD, ROOT + "gemma_expert.lm_head.weight")
        rest = (EXPERT + "embed_tokens.weight", LANGUAGE + "norm.weight", "*.rotary_emb.inv_freq")
        return [*heads, *rest, *(last + part for part in parts), "*.embeddings.position_ids"]


def named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {prefix + name: parameter for name, parameter in module.named_parameters(recurse=False)}


def siglip_targets(prefix: str, block: nn.Module) -> dict[str, Tensor]:
    found = {
        **named(prefix + "layer_norm1.", block.norm1),
        **named(prefix + "layer_norm2.", block.norm2),
        **named(prefix + "self_attn.out_proj.", block.out),
        **named(prefix + "mlp.fc1.", block.fc1),
        **named(prefix + "mlp.fc2.", block.fc2),
    }
    for name, fused in block.qkv.named_parameters():
        for part, view in zip("qkv", fused.chunk(3), strict=True):
            found[f"{prefix}self_attn.{part}_proj.{name}"] = view
    return found


def _gemma_targets(prefix: str, layer: GemmaLayer) -> dict[str, Tensor]:
    found = named(prefix + "input_layernorm.", layer.attention_norm)
    for suffix, values in _weight_and_scale(layer.qkv):
        parts = zip("qkv", values.split(layer.split), strict=True)
        found.update({f"{prefix}self_attn.{name}_proj.{suffix}": part for name, part in parts if part.numel()})
    if hasattr(layer, "out"):
        found.update(named(prefix + "post_attention_layernorm.", layer.mlp_norm))
        found[prefix + "self_attn.o_proj.weight"] = layer.out.weight
        for suffix, values in _weight_and_scale(layer.gate_up):
            found.update(
                {f"{prefix}mlp.gate_proj.{suffix}": values[0::2], f"{prefix}mlp.up_proj.{suffix}": values[1::2]}
            )
        found.update({f"{prefix}mlp.down_proj.{suffix}": values for suffix, values in _weight_and_scale(layer.down)})
    return found


def _weight_and_scale(linear: nn.Linear | Fp8Linear) -> list[tuple[str, Tensor]]:
    """What checkpoints call them, and where they lie; only FP8 weights have a scale, one for each row."""
    scales = [("weight_scale", linear.scale)] if isinstance(linear, Fp8Linear) else []
    return [("weight", linear.weight), *scales]
