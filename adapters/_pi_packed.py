"""Weights of pi0 and pi0.5 as the fused kernels read them: packed once for an adapter, and the network's own memory
where the layouts agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from phyai_core.layers.fp8 import Fp8Linear
from phyai_core.layers.gemma import GemmaLayer
from phyai_core.layers.siglip import SiglipTower
from phyai_kernels.expert_qkv import EXPERT_QKV
from phyai_kernels.expert_weights import ExpertEnds, ExpertLayer, ExpertWeights, Mixing, pack_expert
from phyai_kernels.image_patches import fold_patches
from phyai_kernels.prefix_pass import PrefixLayer, Weight
from phyai_kernels.skinny import SUM_TILE
from phyai_kernels.vision_pass import Affine, VisionBlock

if TYPE_CHECKING:
    from phyai_adapters._pi import PiAdapter


class FusedWeights(NamedTuple):
    """What all static shapes of one adapter share."""

    patches: Affine  # of pixels - 128: weight [D, padded], bias and positions [I, D]
    vision: list[VisionBlock]
    prefix: list[PrefixLayer]
    expert: ExpertWeights
    rotary: Tensor  # [2, positions, K / 2]


def refuse_fused(adapter: PiAdapter) -> str | None:
    """Why the fused launches cannot, or should not, run this adapter; None if they can."""
    sizes, weight = adapter.network.sizes, adapter.network.vlm.embedding
    width, head_dim = sizes.expert.width, sizes.expert.head_dim
    if width < SUM_TILE or width & (width - 1) or head_dim & (head_dim - 1):
        return f"needs powers of two, {SUM_TILE} and more: the expert's width is {width}, its heads have {head_dim}"
    if adapter.fuses_everywhere:
        return None
    if weight.dtype is not torch.bfloat16:
        return f"made for bfloat16, not {weight.dtype}"
    return EXPERT_QKV.refuse(weight.device)


@torch.inference_mode(False)
@torch.no_grad()
def pack_weights(adapter: PiAdapter) -> FusedWeights:
    """Packs the weights of an adapter; its network stays usable."""
    network = adapter.network
    layers = [
        ExpertLayer(layer.qkv.weight, layer.out.weight, *_in_turns(layer.gate_up), layer.down.weight)
        for layer in network.expert.layers
    ]
    expert = pack_expert(layers, adapter.expert_ends(), adapter.modulation_table(), network.sizes.expert.head_dim)
    for index, layer in enumerate(network.expert.layers):
        for name in ("out", "gate_up", "down"):  # one copy is enough; rows of queries and keys are packed otherwise
            getattr(layer, name).weight.data = getattr(expert, name)[index]
    return FusedWeights(
        patches=_fold_patches(network.vlm.vision),
        vision=[_vision_block(block) for block in network.vlm.vision.blocks],
        prefix=[_prefix_layer(layer) for layer in network.vlm.layers],
        expert=expert,
        rotary=torch.stack((adapter.rotary.cos, adapter.rotary.sin)),
    )


def make_ends(adapter: PiAdapter, entry: Tensor, bias: Tensor, mixing: Mixing | None = None) -> ExpertEnds:
    """With the action head turned round: the models point from action to noise."""
    head = adapter.network.expert.action_out
    return ExpertEnds(entry, bias, -head.weight, -head.bias, mixing)


def _in_turns(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    return linear.weight[0::2], linear.weight[1::2]


def _fold_patches(tower: SiglipTower) -> Affine:
    weight, bias = fold_patches(tower.patch.weight, tower.patch.bias, tower.dtype)
    return Affine(weight, (tower.position + bias).to(tower.dtype))


def _vision_block(block: nn.Module) -> VisionBlock:
    return VisionBlock(*(affine(getattr(block, name)) for name in VisionBlock.__dataclass_fields__))


def affine(module: nn.Module) -> Affine:
    return Affine(module.weight, module.bias)


def _prefix_layer(layer: GemmaLayer) -> PrefixLayer:
    norm, qkv = layer.attention_norm.weight, _weight(layer.qkv)
    if not hasattr(layer, "out"):
        return PrefixLayer(norm, qkv)
    out, gate_up, down = (_weight(getattr(layer, name)) for name in ("out", "gate_up", "down"))
    return PrefixLayer(norm, qkv, out, layer.mlp_norm.weight, gate_up, down)


def _weight(linear: nn.Linear | Fp8Linear) -> Weight:
    return Weight(linear.weight, getattr(linear, "scale", None))
