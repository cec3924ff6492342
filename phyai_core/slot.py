"""One static shape: buffers and, on a CUDA device, the graph from the staged inputs to the latents.

Nothing in a slot depends on how a request is conditioned: the tables of RTC are inputs like the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.guidance import make_guidance
from phyai_core.packing import Field, Staging, describe
from phyai_core.rtc import RtcTables
from phyai_core.sampler import Conditioning, conditioning_fields, sample, write_conditioning
from phyai_core.stages import DeviceStageClock, HostStageClock
from phyai_core.types import FloatArray
from phyai_core.validity import Lifetime, Validity
from phyai_kernels.affine_update import AFFINE_UPDATE

TOKENS, PROMPT_EMBEDDING = "tokens", "prompt_embedding"
WARM_UPS = 3  # before a capture: libraries choose their kernels and take their workspaces in the first runs


class Job(NamedTuple):
    """One request as the network sees it."""

    inputs: Mapping[str, Tensor]  # CPU tensors with B = 1, from the adapter's preprocess
    tables: RtcTables
    noise: FloatArray | Tensor  # [H, A']


class Slot:
    """Buffers of `batch` requests of the shapes of `example`, and what is computed from them."""

    def __init__(
        self,
        adapter: Adapter,
        device: torch.device,
        example: Mapping[str, Tensor],
        batch: int,
        guidance: str | None = None,
    ) -> None:
        self.batch = batch
        self._guidance = guidance
        self.graph: torch.cuda.CUDAGraph | None = None
        self._adapter, self._device = adapter, device
        self._fields = {name: describe(tensor) for name, tensor in example.items()}
        inputs = {name: Field((batch, *field.shape[1:]), field.dtype) for name, field in self._fields.items()}
        self._staging = Staging({**inputs, **conditioning_fields(adapter.spec, batch)}, device)
        self._inputs = {name: self._staging.device[name] for name in inputs}
        self._conditioning = Conditioning.pick(self._staging.device)
        self._latents = torch.zeros(self._conditioning.noise.shape, pin_memory=device.type == "cuda")
        self._update = AFFINE_UPDATE.pick(device)
        self._validity = Validity(adapter.lifetimes)
        self._clock = DeviceStageClock() if device.type == "cuda" else HostStageClock()
        self._done = torch.cuda.Event(blocking=True) if device.type == "cuda" else None

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds of vision (where the adapter names it), prefix and denoise in the last run."""
        return self._clock.seconds()

    def stage(self, jobs: Sequence[Job]) -> None:
        """Write the jobs into the buffers; rows that are left over repeat the last job. Raises ValueError on shapes."""
        for row in range(self.batch):
            job = jobs[min(row, len(jobs) - 1)]
            self._check(job.inputs)
            for name, tensor in job.inputs.items():
                self._write_input(name, row, tensor.numpy()[0])
            write_conditioning(Conditioning.pick(self._staging.host), row, job.tables, job.noise)

    def run(self) -> FloatArray:
        """Latents [B, H, A'] of what is staged, a fresh array. Waits for the device without using the CPU."""
        self._staging.upload()
        self._keep_prompt()
        if self.graph is None:
            self._compute()
        else:
            self.graph.replay()
        if self._done is not None:
            self._done.record()
            self._done.synchronize()
        return self._latents.numpy().copy()

    def capture(self, pool: tuple[int, int]) -> None:
        """Record `_compute` on the current stream. What the graph computes in between shares memory with its pool."""
        for _ in range(WARM_UPS):
            self.run()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._compute()
        self._validity.begin(Lifetime.OBSERVATION)  # from here on each replay overwrites these values
        self.graph = graph

    def _compute(self) -> None:
        adapter, validity = self._adapter, self._validity
        self._clock.mark("start")
        validity.begin(Lifetime.OBSERVATION)
        with self._watch_vision():
            validity.once("prefix", lambda: adapter.encode_prefix(self._inputs))
        self._clock.mark("prefix")
        guidance = make_guidance(self._guidance, adapter.derivative_step) if self._guidance else None
        latents = sample(adapter, self._update, validity, lambda: validity.read("prefix"), self._conditioning, guidance)
        self._latents.copy_(latents, non_blocking=True)
        self._clock.mark("denoise")

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

    def _check(self, inputs: Mapping[str, Tensor]) -> None:
        given = {name: describe(tensor) for name, tensor in inputs.items()}
        for name in sorted(given.keys() | self._fields.keys()):
            if given.get(name) != self._fields.get(name):
                raise ValueError(
                    f"input {name}: {_words(given.get(name))} given, the engine was prepared for "
                    f"{_words(self._fields.get(name))}; the sizes a policy was configured with cannot change"
                )

    def _write_input(self, name: str, row: int, value: np.ndarray) -> None:
        target = self._staging.host[name]
        if name == TOKENS and not np.array_equal(target[row], value):
            self._validity.begin(Lifetime.PROMPT)
        target[row] = value

    def _keep_prompt(self) -> None:
        """The prompt embedding outlives an observation; it is computed anew, into the same memory, for a new prompt."""
        if PROMPT_EMBEDDING in self._adapter.lifetimes:
            self._validity.once(PROMPT_EMBEDDING, self._embed_prompt)

    def _embed_prompt(self) -> Tensor:
        inputs = {name: tensor for name, tensor in self._inputs.items() if name != PROMPT_EMBEDDING}
        embedding = self._adapter.embed_prompt(inputs)
        buffer = self._inputs.setdefault(PROMPT_EMBEDDING, torch.empty_like(embedding))
        return buffer.copy_(embedding)


def _words(field: Field | None) -> str:
    return "nothing" if field is None else f"{field.dtype} {list(field.shape)}"
