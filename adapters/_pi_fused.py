"""One inference of pi0 or pi0.5 as launches of fused kernels: the same values as the adapter's methods, up to rounding.

Weights are packed once for an adapter and are the network's own memory where the layouts agree; buffers are made once
for a static shape. Letters: B robots, C cameras, P prefix tokens, H chunk rows, D width of the expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from phyai_adapters._flow_time import table_rows
from phyai_core.layers.fp8 import Fp8Linear
from phyai_core.layers.gemma import GemmaLayer
from phyai_core.layers.siglip import SiglipTower
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.expert_loop import Cache, ExpertLoop, LoopInputs, make_cache, make_inputs
from phyai_kernels.expert_loop_hopper import make_expert_loops
from phyai_kernels.expert_qkv import EXPERT_QKV
from phyai_kernels.expert_weights import ExpertEnds, ExpertLayer, ExpertWeights, Mixing, pack_expert
from phyai_kernels.image_patches import IMAGE_PATCHES, fold_patches
from phyai_kernels.pack_prefix import PACK_PREFIX
from phyai_kernels.prefix_pass import PrefixLayer, PrefixPass, Weight
from phyai_kernels.skinny import SUM_TILE
from phyai_kernels.vision_pass import Affine, VisionBlock, VisionPass

if TYPE_CHECKING:
    from phyai_adapters._pi import PiAdapter
    from phyai_core.sampler import Conditioning


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
    if wrong := [width for width in (sizes.vlm.width, sizes.expert.width) if width % SUM_TILE]:
        return f"width {wrong[0]} is not a multiple of {SUM_TILE}"
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
    return VisionBlock(*(_affine(getattr(block, name)) for name in VisionBlock.__dataclass_fields__))


def _affine(module: nn.Module) -> Affine:
    return Affine(module.weight, module.bias)


def _prefix_layer(layer: GemmaLayer) -> PrefixLayer:
    norm, qkv = layer.attention_norm.weight, _weight(layer.qkv)
    if not hasattr(layer, "out"):
        return PrefixLayer(norm, qkv)
    out, gate_up, down = (_weight(getattr(layer, name)) for name in ("out", "gate_up", "down"))
    return PrefixLayer(norm, qkv, out, layer.mlp_norm.weight, gate_up, down)


def _weight(linear: nn.Linear | Fp8Linear) -> Weight:
    return Weight(linear.weight, getattr(linear, "scale", None))


class FusedInference:
    """Buffers and launches of one static shape, over the buffers of the engine."""

    def __init__(
        self,
        adapter: PiAdapter,
        weights: FusedWeights,
        inputs: Mapping[str, Tensor],
        given: Conditioning,
        dispatcher: Dispatcher,
    ) -> None:
        self._adapter, self._weights, self._inputs, self._given = adapter, weights, inputs, given
        (robots, cameras), words = inputs["image_mask"].shape, inputs["token_mask"].shape[1]
        vision, device = adapter.network.sizes.vision, inputs["image_mask"].device
        tokens = cameras * vision.tokens + words
        self._length = torch.zeros(robots, dtype=torch.int32, device=device)
        self._rows = given.leftover.shape[1] + adapter.lead_rows
        cache = make_cache(weights.expert, robots, tokens + self._rows)
        prefix = (weights.prefix, *cache, self._length, weights.rotary, tokens, dispatcher)
        self._prefix = PrefixPass(*prefix)
        self._make_vision(robots * cameras, dispatcher)
        self._plan_cuts(robots, dispatcher)
        self._pack = self._plan_pack(robots, dispatcher)
        self._loops = self._make_loops(robots, cache, dispatcher)

    def launches(self) -> Mapping[str, Callable[[], Tensor | None]]:
        """By stage and in order."""
        return {"vision": self.see, "prefix": self.read, "denoise": self.act}

    def see(self) -> None:
        """Frames -> image tokens."""
        if self._cuts:
            for cut, arguments in self._cuts:
                cut(*arguments)
            torch.addmm(self._positions, self._patches, self._weights.patches.weight.T, out=self._vision.x)
        else:
            images = self._adapter.prepare_images(self._inputs)
            patches = self._adapter.network.vlm.vision.embed(images.flatten(0, 1))
            self._vision.x.copy_(patches.flatten(0, 1))
        self._vision.run()

    def read(self) -> None:
        """Image tokens and prompt -> keys and values of every layer."""
        pack, arguments = self._pack
        images, image_mask, token_mask, x, length = arguments
        pack(images, image_mask, self._adapter.embed_prompt(self._inputs), token_mask, x, length)
        self._prefix.run()

    def act(self) -> Tensor:
        """All denoise steps -> latents [B, H, A']."""
        chunks = []
        for first, loop in self._loops:
            self._begin(first, loop.inputs)
            chunks.append(_chunk_rows(loop.run(), loop.inputs))
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def _make_vision(self, images: int, dispatcher: Dispatcher) -> None:
        vlm, vision = self._adapter.network.vlm, self._adapter.network.sizes.vision
        kind = {"dtype": vlm.vision.dtype, "device": self._length.device}
        x = torch.zeros(images * vision.tokens, vision.width, **kind)
        self._image_tokens = torch.zeros(len(x), self._prefix.x.shape[1], **kind)
        ends = (_affine(vlm.vision.norm), _affine(vlm.projector), images, vision.num_heads)
        self._vision = VisionPass(self._weights.vision, *ends, x, self._image_tokens, dispatcher)

    def _plan_cuts(self, robots: int, dispatcher: Dispatcher) -> None:
        """Frames that come as the tower wants them need no resizing: a launch for each camera, and one product."""
        sizes, weights = self._adapter.network.sizes.vision, self._weights.patches
        frames = [self._inputs[f"image.{camera.key}"] for camera in self._adapter.spec.cameras]
        fits = all(f.dtype == torch.uint8 and f.shape[1:3] == (sizes.image_size,) * 2 for f in frames)
        self._cuts: list[tuple[Callable, tuple]] = []
        if "images" in self._inputs or not fits:
            return
        patches = self._vision.x.new_zeros(robots, len(frames), sizes.tokens, weights.weight.shape[1])
        for index, frame in enumerate(frames):
            arguments = (frame, patches[:, index], sizes.patch_size)
            self._cuts.append((dispatcher.pick(IMAGE_PATCHES, *arguments), arguments))
        self._patches = patches.flatten(0, 2)
        self._positions = weights.bias.repeat(robots * len(frames), 1)

    def _plan_pack(self, robots: int, dispatcher: Dispatcher) -> tuple[Callable, tuple]:
        """The candidate, and its arguments without the prompt, which a runtime may only embed later."""
        x, inputs = self._prefix.x.unflatten(0, (robots, -1)), self._inputs
        arguments = (self._image_tokens, inputs["image_mask"], inputs["token_mask"], x, self._length)
        prompt = x[:, : inputs["token_mask"].shape[1]]
        return dispatcher.pick(PACK_PREFIX, *arguments[:2], prompt, *arguments[2:]), arguments

    def _make_loops(self, robots: int, cache: Cache, dispatcher: Dispatcher) -> list[tuple[int, ExpertLoop]]:
        steps, lead = len(self._given.abc), self._adapter.lead_rows

        def make(first: int, count: int) -> LoopInputs:
            part = slice(first, first + count)
            own = Cache(*(tensor[:, part] for tensor in cache))
            return make_inputs(
                self._weights.expert, own, self._length[part], self._rows, steps, self._weights.rotary, lead
            )

        loops, first = [], 0
        for loop, reasons in make_expert_loops(self._weights.expert, robots, make):
            count = len(loop.inputs.prefix_length)
            taken = next(name for name, reason in reasons.items() if reason.startswith("taken"))
            dispatcher.note("expert_loop", f"{count} of {robots} robots, {self._rows} rows", taken, reasons)
            self._adapter.begin_loop(loop.inputs)
            loops.append((first, loop))
            first += count
        return loops

    def _begin(self, first: int, inputs: LoopInputs) -> None:
        """What the chunks of robots `first`.. start from and are tied to -> the loop's inputs."""
        part = slice(first, first + len(inputs.prefix_length))
        given, lead = self._given, inputs.lead
        start = torch.where(given.starts[part], given.leftover[part], self._adapter.init_latents(given.noise[part]))
        _chunk_rows(inputs.states[0], inputs).copy_(start)
        _chunk_rows(inputs.prefix, inputs).copy_(given.leftover[part])
        inputs.columns.copy_(given.columns[part, 0])
        robots = (len(inputs.prefix_length), self._rows)
        inputs.abc.unflatten(1, robots)[:, :, lead:].copy_(given.abc[:, part])
        rows = table_rows(given.flow_times[:, part], len(given.abc))
        inputs.times.unflatten(1, robots)[:, :, lead:].copy_(rows)
        if inputs.start is not None:
            self._adapter.lead_tokens(self._inputs, part, inputs.start.unflatten(0, robots)[:, :lead])


def _chunk_rows(rows: Tensor, inputs: LoopInputs) -> Tensor:
    """[R, A'] -> [B, H, A'], without the leading rows."""
    return rows.unflatten(0, (len(inputs.prefix_length), -1))[:, inputs.lead :]
