"""The network of SmolVLA: SigLIP, pixel shuffle and the first Llama layers encode the prefix; a thinner stack denoises.

Sequence: [camera 0 | camera 1 | ... | prompt | state]. Images and prompt see each other, the state sees all of it. An
action token sees the prefix and the actions up to its own. Even expert layers attend to [prefix; actions], odd ones to
the prefix only, through projections of their own whose positions start at 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phyai_adapters._paligemma import named, siglip_targets
from phyai_core.layers.gemma import GemmaSizes, KeysValues
from phyai_core.layers.llama import CrossLlamaLayer, LlamaLayer
from phyai_core.layers.norm import ScaledRMSNorm
from phyai_core.layers.rotary import Rotary
from phyai_core.layers.siglip import SiglipSizes, SiglipTower

ROOT = "vlm_with_expert."
VLM = ROOT + "vlm.model."
VISION, TEXT, EXPERT = VLM + "vision_model.", VLM + "text_model.", ROOT + "lm_expert."
CONNECTOR = VLM + "connector.modality_projection.proj.weight"
EPS = 1e-5
HEAD_DIM = 64  # of language model and vision tower
PARTS = ("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out")


@dataclass(frozen=True)
class SmolSizes:
    """Sizes of the whole network. One of `self_every` expert layers attends to actions too, the others do not."""

    vision: SiglipSizes
    vlm: GemmaSizes
    expert: GemmaSizes
    vocab: int
    shuffle: int  # side of the square of patches that become one token
    latent_dim: int = 32  # A', also the width of the padded state
    self_every: int = 2

    @property
    def image_tokens(self) -> int:
        """Tokens per image."""
        return self.vision.tokens // self.shuffle**2


FULL = SmolSizes(
    vision=SiglipSizes(768, 12, 3072, 12, image_size=512, patch_size=16),
    vlm=GemmaSizes(960, 16, 2560, 15, 5, 64),
    expert=GemmaSizes(720, 16, 2048, 15, 5, 64),
    vocab=49280,
    shuffle=4,
)


def canonical_key(key: str) -> str:
    return key.removeprefix("model.")


def read_sizes(shapes: Mapping[str, Sequence[int]], config: Mapping, vision_heads: int | None, head_dim: int):
    """The sizes a checkpoint has, from the shapes under canonical keys and from config.json."""

    def shape(key: str) -> Sequence[int]:
        if key not in shapes:
            raise ValueError(f"checkpoint: {key} is missing; these are not the weights of a SmolVLA policy")
        return shapes[key]

    def stack(prefix: str) -> GemmaSizes:
        mlp, width = shape(prefix + "layers.0.mlp.gate_proj.weight")
        heads, shared = (shape(f"{prefix}layers.0.self_attn.{x}_proj.weight")[0] // head_dim for x in "qk")
        depth = len([key for key in shapes if key.startswith(prefix) and key.endswith("input_layernorm.weight")])
        return GemmaSizes(width, depth, mlp, heads, shared, head_dim)

    width, _, patch, _ = shape(VISION + "embeddings.patch_embedding.weight")
    side = math.isqrt(shape(VISION + "embeddings.position_embedding.weight")[0])
    mlp = shape(VISION + "encoder.layers.0.mlp.fc1.weight")[0]
    depth = len([key for key in shapes if key.startswith(VISION) and key.endswith("layer_norm1.weight")])
    vision = SiglipSizes(width, depth, mlp, vision_heads or width // HEAD_DIM, side * patch, patch)
    vocab, every = shape(TEXT + "embed_tokens.weight")[0], config["self_attn_every_n_layers"]
    shuffle = math.isqrt(shape(CONNECTOR)[1] // width)
    latent = shape("action_in_proj.weight")[1]
    return SmolSizes(vision, stack(TEXT), stack(EXPERT), vocab, shuffle, latent, every)


class Prefix(NamedTuple):
    """What every denoise step reads; lifetime OBSERVATION. P prefix tokens, the state among them."""

    keys_values: tuple[KeysValues, ...]  # per expert layer, [B, P, M, K]; in odd layers projected already
    key_mask: Tensor  # bool [B, P]
    mask: Tensor  # bool [B, H, P + H]: what each action token may see
    rotary: Rotary  # of the action tokens behind the prefix, [B, H, 1, K/2]
    restarted: Rotary  # of the action tokens counted from 0


class SmolVlm(nn.Module):
    """Images, prompt and state -> keys and values of every layer."""

    def __init__(self, sizes: SmolSizes, dtype: torch.dtype):
        super().__init__()
        self.sizes, self.dtype = sizes, dtype
        width, depth = sizes.vlm.width, sizes.vlm.depth
        self.vision = SiglipTower(sizes.vision, dtype)
        self.connector = nn.Linear(sizes.vision.width * sizes.shuffle**2, width, bias=False, dtype=dtype)
        self.embedding = nn.Parameter(torch.empty(sizes.vocab, width, dtype=dtype))
        self.state_in = nn.Linear(sizes.latent_dim, width, dtype=torch.float32)
        self.layers = nn.ModuleList(LlamaLayer(sizes.vlm, dtype, EPS, index == depth - 1) for index in range(depth))

    def embed_images(self, images: Tensor) -> Tensor:
        """[B, C, 3, h, w] in [-1, 1] -> [B, C, T, D]."""
        x = self.vision(images.flatten(0, 1))
        side, step = self.sizes.vision.image_size // self.sizes.vision.patch_size, self.sizes.shuffle
        x = x.unflatten(1, (side // step, step, side // step, step)).transpose(2, 3)  # [B C, h, w, step, step, D]
        x = self.connector(x.flatten(3).flatten(1, 2)) * math.sqrt(self.embedding.shape[-1])
        return x.unflatten(0, images.shape[:2])

    def embed_prompt(self, tokens: Tensor) -> Tensor:
        """int64 [B, T] -> [B, T, D]."""
        return self.embedding[tokens] * math.sqrt(self.embedding.shape[-1])

    def forward(self, x: Tensor, state: Tensor, rotary: Rotary, mask: Tensor) -> tuple[KeysValues, ...]:
        """x [B, P - 1, D], state [B, 1, D], rotary of all P tokens, mask bool [B, P - 1] -> keys and values per layer.

        The state goes through each layer behind the others, because they do not see it.
        """
        before, behind = (Rotary(*(part[:, window] for part in rotary)) for window in (slice(-1), slice(-1, None)))
        whole, kept = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1), []
        for layer in self.layers:
            x, own = layer(x, before, mask)
            state, of_state = layer(state, behind, whole, own)
            kept.append(KeysValues(*(torch.cat(pair, dim=1) for pair in zip(own, of_state, strict=True))))
        return tuple(kept)


class SmolExpert(nn.Module):
    """Action tokens over a prefix. Projections of actions and time stay float32."""

    def __init__(self, sizes: SmolSizes, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        width, inputs = sizes.expert.width, sizes.vlm.num_kv_heads * sizes.vlm.head_dim
        self.layers = nn.ModuleList(
            LlamaLayer(sizes.expert, dtype, EPS)
            if index % sizes.self_every == 0
            else CrossLlamaLayer(sizes.expert, dtype, EPS, inputs)
            for index in range(sizes.expert.depth)
        )
        self.norm = ScaledRMSNorm(width, EPS)
        self.action_in = nn.Linear(sizes.latent_dim, width, dtype=torch.float32)
        self.action_out = nn.Linear(width, sizes.latent_dim, dtype=torch.float32)
        self.mix_in = nn.Linear(2 * width, width, dtype=torch.float32)
        self.mix_out = nn.Linear(width, width, dtype=torch.float32)

    def project(self, keys_values: Sequence[KeysValues]) -> tuple[KeysValues, ...]:
        """Keys and values of the language model -> what each layer of the expert reads."""
        pairs = zip(self.layers, keys_values, strict=True)
        return tuple(layer.project(kept) if isinstance(layer, CrossLlamaLayer) else kept for layer, kept in pairs)

    def forward(self, x: Tensor, prefix: Prefix) -> Tensor:
        """Action tokens x [B, H, D] -> normalised hidden state [B, H, D]."""
        x = x.to(self.dtype)
        for layer, kept in zip(self.layers, prefix.keys_values, strict=True):
            if isinstance(layer, CrossLlamaLayer):
                x = layer(x, prefix.restarted, prefix.key_mask, kept)
            else:
                x, _ = layer(x, prefix.rotary, prefix.mask, kept)
        return self.norm(x)


class SmolNetwork(nn.Module):
    """Both parts."""

    def __init__(self, sizes: SmolSizes, dtype: torch.dtype):
        super().__init__()
        self.sizes = sizes
        self.vlm, self.expert = SmolVlm(sizes, dtype), SmolExpert(sizes, dtype)

    def targets(self) -> dict[str, Tensor]:
        """{canonical key: tensor or view to fill} for every weight this network uses."""
        vlm, vision, expert, patch = self.vlm, self.vlm.vision, self.expert, self.sizes.vision.patch_size
        modules = (vlm.state_in, expert.action_in, expert.action_out, expert.mix_in, expert.mix_out)
        found = {
            VISION + "embeddings.patch_embedding.weight": vision.patch.weight.view(-1, 3, patch, patch),
            VISION + "embeddings.patch_embedding.bias": vision.patch.bias,
            VISION + "embeddings.position_embedding.weight": vision.position,
            **named(VISION + "post_layernorm.", vision.norm),
            CONNECTOR: vlm.connector.weight,
            TEXT + "embed_tokens.weight": vlm.embedding,
            **named(EXPERT + "norm.", expert.norm),
        }
        for name, module in zip(PARTS, modules, strict=True):
            found.update(named(name + ".", module))
        for index, block in enumerate(vision.blocks):
            found.update(siglip_targets(f"{VISION}encoder.layers.{index}.", block))
        for prefix, layers in ((TEXT, vlm.layers), (EXPERT, expert.layers)):
            for index, layer in enumerate(layers):
                found.update(_layer_targets(f"{prefix}layers.{index}.", layer))
        return found

    def unused(self) -> list[str]:
        """Glob patterns of weights that files may hold and this network does not need."""
        last = f"{TEXT}layers.{self.sizes.vlm.depth - 1}."
        parts = ("self_attn.q_proj.*", "self_attn.o_proj.*", "mlp.*", "post_attention_layernorm.*")
        return [ROOT + "vlm.lm_head.weight", TEXT + "norm.weight", *(last + part for part in parts)]


def _layer_targets(prefix: str, layer: LlamaLayer | CrossLlamaLayer) -> dict[str, Tensor]:
    found = named(prefix + "input_layernorm.", layer.attention_norm)
    if isinstance(layer, CrossLlamaLayer):
        parts = [("q", layer.query.weight), ("k", layer.key.weight), ("v", layer.value.weight)]
    else:
        parts = zip("qkv", layer.qkv.weight.split(layer.split), strict=True)
    found.update({f"{prefix}self_attn.{name}_proj.weight": view for name, view in parts if view.numel()})
    if hasattr(layer, "out"):
        gate, up = layer.gate_up.weight.chunk(2)
        found.update(named(prefix + "post_attention_layernorm.", layer.mlp_norm))
        found[prefix + "self_attn.o_proj.weight"] = layer.out.weight
        found.update({prefix + "mlp.gate_proj.weight": gate, prefix + "mlp.up_proj.weight": up})
        found[prefix + "mlp.down_proj.weight"] = layer.down.weight
    return found
