"""One static shape: buffers and, on a CUDA device, the graphs from the staged inputs to the latents.

Nothing in a slot depends on how a request is conditioned: the tables of RTC are inputs like the images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.packing import Field, Staging, describe
from phyai_core.program import Program
from phyai_core.rtc import RtcTables
from phyai_core.sampler import Conditioning, conditioning_fields, write_conditioning
from phyai_core.stages import DeviceStageClock, HostStageClock
from phyai_core.types import FloatArray

TOKENS, IMAGE = "tokens", "image."
SLEPT_SHARE = 0.75
WARM_UPS = 3  # before a capture: libraries choose their kernels and take their workspaces in the first runs


class Job(NamedTuple):
    """One request as the network sees it."""

    inputs: Mapping[str, Tensor]  # CPU tensors with B = 1, from the adapter's preprocess
    tables: RtcTables
    noise: FloatArray | Tensor  # of spec.noise_shape


class Slot:
    """Buffers of `batch` requests of the shapes of `example`, and what is computed from them."""

    def __init__(
        self,
        adapter: Adapter,
        device: torch.device,
        example: Mapping[str, Tensor],
        batch: int,
        guidance: str | None = None,
        fused: bool = True,
    ) -> None:
        self.batch = batch
        self.graph: torch.cuda.CUDAGraph | None = None
        self._early_graph: torch.cuda.CUDAGraph | None = None  # what needs the images alone
        self._begun = False  # it was launched for what is staged
        self._prompt_graph: torch.cuda.CUDAGraph | None = None
        self._device = device
        self._fields = {name: describe(tensor) for name, tensor in example.items()}
        inputs = {name: Field((batch, *field.shape[1:]), field.dtype) for name, field in self._fields.items()}
        self._staging = Staging({**inputs, **conditioning_fields(adapter.spec, batch)}, device, _is_image)
        self._given = Conditioning.pick(self._staging.host)
        self._latents = torch.zeros(self._given.leftover.shape, pin_memory=device.type == "cuda")
        self._clock = DeviceStageClock() if device.type == "cuda" else HostStageClock()
        device_inputs = {name: self._staging.device[name] for name in inputs}
        given = Conditioning.pick(self._staging.device)
        self._program = Program(adapter, device, device_inputs, given, guidance, self._clock, fused)
        self._done = torch.cuda.Event() if device.type == "cuda" else None
        self._device_s = 0.0  # how long the last run took

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds of vision (where the adapter names it), prefix and denoise in the last run."""
        return self._clock.seconds()

    def stage(self, jobs: Sequence[Job]) -> None:
        """Write the jobs into the buffers; rows that are left over repeat the last job. Raises ValueError on shapes.

        Images come first: the device starts on them while the rest is written.
        """
        rows = [jobs[min(row, len(jobs) - 1)] for row in range(self.batch)]
        inputs = [{name: tensor.numpy() for name, tensor in job.inputs.items()} for job in rows]
        for arrays in inputs:
            self._check(arrays)
        self._write_inputs(inputs, images=True)
        if self._early_graph is not None:
            self._early_graph.replay()
            self._begun = True
        self._write_inputs(inputs, images=False)
        for row, job in enumerate(rows):
            write_conditioning(self._given, row, job.tables, job.noise)

    def run(self) -> FloatArray:
        """Latents [B, H, A'] of what is staged, a fresh array."""
        if self.graph is None:
            self._program.keep_prompt(self._embed_prompt)
            self._compute()
        else:
            if self._early_graph is not None and not self._begun:
                self._early_graph.replay()
            if self._prompt_graph is not None:
                self._program.keep_prompt(self._prompt_graph.replay)
            self.graph.replay()
        self._begun = False
        self._wait()
        return self._latents.numpy().copy()

    def capture(self, pool: tuple[int, int]) -> None:
        """Record graphs on the current stream. What they compute in between shares memory with their pool."""
        for _ in range(WARM_UPS):
            self.run()
        if self._program.keeps_prompt:
            self._prompt_graph = self._record(self._embed_prompt, pool)
        if self._program.needs_images_first:
            self._early_graph = self._record(self._begin, pool)
            self.graph = self._record(self._finish, pool)
        else:
            self.graph = self._record(self._compute, pool)
        self._program.end()

    def _record(self, launch: Callable[[], None], pool: tuple[int, int]) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            launch()
        return graph

    def _embed_prompt(self) -> None:
        self._staging.upload_rest()  # an adapter may embed more than the tokens
        self._program.embed_prompt()

    def _compute(self) -> None:
        self._staging.upload()
        self._latents.copy_(self._program.run(), non_blocking=True)

    def _begin(self) -> None:
        self._staging.upload_early()
        self._program.begin()

    def _finish(self) -> None:
        self._staging.upload_rest()
        self._latents.copy_(self._program.finish(), non_blocking=True)

    def _wait(self) -> None:
        """Sleep through most of the time the last run took, then spin without the interpreter's lock.

        Who sleeps to the end wakes up late and on a cold core; who spins from the start takes a core from others.
        """
        if self._done is None:
            return
        self._done.record()
        started_s = time.perf_counter()
        time.sleep(SLEPT_SHARE * self._device_s)
        self._done.synchronize()
        self._device_s = time.perf_counter() - started_s

    def _check(self, inputs: Mapping[str, np.ndarray]) -> None:
        given = {name: Field(array.shape, array.dtype) for name, array in inputs.items()}
        if given == self._fields:
            return
        for name in sorted(given.keys() | self._fields.keys()):
            if given.get(name) != self._fields.get(name):
                raise ValueError(
                    f"input {name}: {_words(given.get(name))} given, the engine was prepared for "
                    f"{_words(self._fields.get(name))}; the sizes a policy was configured with cannot change"
                )

    def _write_inputs(self, inputs: Sequence[Mapping[str, np.ndarray]], images: bool) -> None:
        for name in (name for name in self._fields if _is_image(name) == images):
            target = self._staging.host[name]
            for row, arrays in enumerate(inputs):
                value = arrays[name][0]
                if name == TOKENS and not np.array_equal(target[row], value):
                    self._program.begin_prompt()
                target[row] = value


def _is_image(name: str) -> bool:
    return name.startswith(IMAGE)


def _words(field: Field | None) -> str:
    return "nothing" if field is None else f"{field.dtype} {list(field.shape)}"
