"""What one inference computes, over buffers that stay the same ones: from inputs on the device to latents there.

Either launches that the adapter has made for this shape, or its methods one after the other, each value computed once
in its lifetime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.guidance import make_guidance
from phyai_core.sampler import Conditioning, sample
from phyai_core.stages import StageClock
from phyai_core.validity import Lifetime, Validity
from phyai_kernels.affine_update import AFFINE_UPDATE

PROMPT_EMBEDDING = "prompt_embedding"


class Program:
    """Of one static shape. `inputs` and `given` are the buffers; `clock` hears where each stage ends."""

    def __init__(
        self,
        adapter: Adapter,
        device: torch.device,
        inputs: Mapping[str, Tensor],
        given: Conditioning,
        guidance: str | None,
        clock: StageClock,
        fused: bool = True,
    ) -> None:
        """`fused`: take the adapter's launches where it brings some."""
        self._adapter, self._inputs, self._given, self._guidance = adapter, dict(inputs), given, guidance
        self._clock = clock
        self._update = AFFINE_UPDATE.pick(device)
        self._validity = Validity(adapter.lifetimes)
        self._launches: Mapping[str, Callable[[], Tensor | None]] | None = None if fused and not guidance else {}

    @property
    def keeps_prompt(self) -> bool:
        """There is something that depends on the prompt alone."""
        return PROMPT_EMBEDDING in self._adapter.lifetimes

    def begin_prompt(self) -> None:
        """The prompt in the inputs is another one from here on."""
        self._validity.begin(Lifetime.PROMPT)

    def keep_prompt(self, embed: Callable[[], object]) -> None:
        """Have the prompt embedded by `embed` (embed_prompt, or a recording of it) unless it already is."""
        if self.keeps_prompt:
            self._validity.once(PROMPT_EMBEDDING, embed)

    def embed_prompt(self) -> None:
        """Compute the prompt embedding into the memory where it was before."""
        inputs = {name: tensor for name, tensor in self._inputs.items() if name != PROMPT_EMBEDDING}
        embedding = self._adapter.embed_prompt(inputs)
        self._inputs.setdefault(PROMPT_EMBEDDING, torch.empty_like(embedding)).copy_(embedding)

    @property
    def needs_images_first(self) -> bool:
        """`begin` computes something, and from images alone. Known after the first run."""
        return bool(self._launches)

    def run(self) -> Tensor:
        """Latents [B, H, A'] of what is in the buffers."""
        self.begin()
        return self.finish()

    def begin(self) -> None:
        """The part of a run that needs no more than images: an adapter's first launch, where it brings some."""
        self._clock.mark("start")
        self._validity.begin(Lifetime.OBSERVATION)
        if self._launches is None:
            self._launches = self._adapter.fuse(self._inputs, self._given)
        self._run_launches(slice(0, 1))

    def finish(self) -> Tensor:
        """The rest of it, after `begin`."""
        return self._run_launches(slice(1, None)) if self._launches else self._run_methods()

    def end(self) -> None:
        """What was computed in between is no longer to be read: a graph will overwrite it."""
        self._validity.begin(Lifetime.OBSERVATION)

    def _run_launches(self, part: slice) -> Tensor | None:
        latents = None
        for name, launch in list(self._launches.items())[part]:
            latents = launch()
            self._clock.mark(name)
        return latents

    def _run_methods(self) -> Tensor:
        adapter, validity = self._adapter, self._validity
        with self._watch_vision():
            validity.once("prefix", lambda: adapter.encode_prefix(self._inputs))
        self._clock.mark("prefix")
        guidance = make_guidance(self._guidance, adapter.derivative_step) if self._guidance else None
        latents = sample(adapter, self._update, validity, lambda: validity.read("prefix"), self._given, guidance)
        self._clock.mark("denoise")
        return latents

    @contextmanager
    def _watch_vision(self) -> Iterator[None]:
        if self._adapter.vision is None:
            yield
            return
        hook = self._adapter.vision.register_forward_hook(lambda *_: self._clock.mark("vision"))
        try:
            yield
        finally:
            hook.remove()
