"""One inference of pi0 or pi0.5 as launches of fused kernels: the same values as the adapter's methods, up to rounding.

Buffers are made once for a static shape, weights are shared by all (_pi_packed.py). Letters: B robots, C cameras, P
prefix tokens, H chunk rows, A' action dims, R rows of an expert loop, D its width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phyai_adapters._pi_packed import FusedWeights, affine
from phyai_kernels.begin_chunk import BEGIN_CHUNK, Request, Rows
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.expert_loop import Cache, ExpertLoop, LoopInputs, make_cache, make_inputs
from phyai_kernels.expert_loops import Robots, expert_loops
from phyai_kernels.image_patches import IMAGE_PATCHES
from phyai_kernels.pack_prefix import PACK_PREFIX
from phyai_kernels.prefix_pass import PrefixPass
from phyai_kernels.vision_pass import VisionPass

if TYPE_CHECKING:
    from phyai_adapters._pi import PiAdapter
    from phyai_core.sampler import Conditioning


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
        self._parts = self._make_parts(robots, cache, dispatcher)

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
        chunks = [part.run() for part in self._parts]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def _make_vision(self, images: int, dispatcher: Dispatcher) -> None:
        vlm, vision = self._adapter.network.vlm, self._adapter.network.sizes.vision
        kind = {"dtype": vlm.vision.dtype, "device": self._length.device}
        x = torch.zeros(images * vision.tokens, vision.width, **kind)
        self._image_tokens = torch.zeros(len(x), self._prefix.x.shape[1], **kind)
        ends = (affine(vlm.vision.norm), affine(vlm.projector), images, vision.num_heads)
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

    def _make_parts(self, robots: int, cache: Cache, dispatcher: Dispatcher) -> list[_Part]:
        weights, steps, lead = self._weights, len(self._given.abc), self._adapter.lead_rows

        def make(first: int, count: int) -> LoopInputs:
            part = slice(first, first + count)
            own, columns = Cache(*(tensor[:, part] for tensor in cache)), self._given.columns[part, 0]
            length = self._length[part]
            return make_inputs(weights.expert, own, length, columns, self._rows, steps, weights.rotary, lead)

        parts: list[_Part] = []
        work = Robots(weights.expert, robots, make)
        for loop in dispatcher.pick(expert_loops(robots), work)(work):
            first, count = sum(part.count for part in parts), len(loop.inputs.prefix_length)
            self._adapter.begin_loop(loop.inputs)
            parts.append(_Part(loop, self._request(first, count), self._lead(first, loop.inputs), dispatcher))
        return parts

    def _request(self, first: int, count: int) -> Request:
        part, given = slice(first, first + count), self._given
        tensors = (given.noise[part], given.leftover[part], given.starts[part])
        return Request(*tensors, given.abc[:, part], given.flow_times[:, part])

    def _lead(self, first: int, inputs: LoopInputs) -> Callable[[], None]:
        """What fills the leading rows of a loop."""
        if not inputs.lead:
            return lambda: None
        robots = slice(first, first + len(inputs.prefix_length))
        out = inputs.start.unflatten(0, (len(inputs.prefix_length), -1))[:, : inputs.lead]
        return lambda: self._adapter.lead_tokens(self._inputs, robots, out)


class _Part:
    """One expert loop and the robots it serves."""

    def __init__(self, loop: ExpertLoop, request: Request, lead: Callable[[], None], dispatcher: Dispatcher) -> None:
        self.count = len(loop.inputs.prefix_length)
        self._loop, self._lead = loop, lead
        inputs = loop.inputs
        self._arguments = (request, Rows(inputs.states[0], inputs.prefix, inputs.abc, inputs.times), inputs.lead)
        self._begin = dispatcher.pick(BEGIN_CHUNK, *self._arguments)

    def run(self) -> Tensor:
        """Latents [B, H, A'] of these robots."""
        self._begin(*self._arguments)
        self._lead()
        return self._loop.run().unflatten(0, (self.count, -1))[:, self._loop.inputs.lead :]
