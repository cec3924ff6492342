"""Runs inferences of static shape: which slot a batch goes to, and when slots are made.

There is a slot for each prompt length and batch size. On a CUDA device each holds one captured graph, and what graphs
compute in between shares one pool of memory; on a CPU the same code runs eagerly on the same buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.slot import TOKENS, Job, Slot
from phyai_core.types import FloatArray

TOKEN_MASK = "token_mask"


class Runner:
    """All slots of one adapter on one device. For one thread at a time."""

    def __init__(
        self,
        adapter: Adapter,
        device: torch.device,
        example: Mapping[str, Tensor],
        batch_sizes: Sequence[int] = (1,),
        use_graphs: bool = True,
        guidance: str | None = None,
        fused: bool = True,
    ) -> None:
        """`example` is one result of the adapter's preprocess. Without `use_graphs` a CUDA device runs eagerly too.

        `guidance` is one of phyai_core.guidance.GUIDANCE; the one that differentiates always runs eagerly.
        `fused`: take the adapter's launches where it brings some.
        """
        self._adapter, self._device, self._example = adapter, device, example
        self.batch_sizes = tuple(sorted(batch_sizes))
        self._guidance, self._differentiates, self._fused = guidance, guidance == "vjp", fused
        self._captures = use_graphs and device.type == "cuda" and not self._differentiates
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.slots: dict[tuple[int, int], Slot] = {}  # by prompt length and batch size

    @property
    def captures(self) -> int:
        """Graphs that `prepare` has yet to capture."""
        return len(self._keys() - self.slots.keys()) if self._captures else 0

    def prepare(self, progress: Callable[[], None] = lambda: None) -> None:
        """Make every slot; capture its graph and call `progress` after each, the largest first: they share memory."""
        pool = torch.cuda.graph_pool_handle() if self._captures else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # the weights may still be on their way
        for length, batch in sorted(self._keys() - self.slots.keys(), reverse=True):
            with self._on_stream():
                slot = self._make_slot(length, batch)
                if self._captures:
                    slot.capture(pool)
                    progress()
            self.slots[length, batch] = slot

    def run_examples(self) -> None:
        """Make every slot that is missing and run each once, on the example."""
        self.prepare()
        with self._on_stream():
            for slot in self.slots.values():
                slot.run()

    def run(self, jobs: Sequence[Job]) -> tuple[FloatArray, dict[str, float]]:
        """Latents [B, H, A'] of the jobs, and the seconds of each stage, first `staging`: filling the buffers.

        Raises ValueError for shapes that were not prepared.
        """
        if not self.slots:
            self.prepare()
        started_ns = time.perf_counter_ns()
        length = max(_prompt_length(job.inputs) for job in jobs)
        slot = self._find(length, len(jobs))
        with self._on_stream():
            slot.stage([job._replace(inputs=self._pad(job.inputs, length)) for job in jobs])
            staging_s = (time.perf_counter_ns() - started_ns) * 1e-9
            latents = slot.run()
        return latents[: len(jobs)], {"staging": staging_s, **slot.stages_s}

    def close(self) -> None:
        """Release buffers and graphs."""
        self.slots.clear()
        if self._captures:
            torch.cuda.empty_cache()

    def _keys(self) -> set[tuple[int, int]]:
        lengths = self._adapter.prompt_buckets or (0,)
        return {(length, batch) for length in lengths for batch in self.batch_sizes}

    def _make_slot(self, length: int, batch: int) -> Slot:
        """Its buffers hold the example, so that what warms up and is captured are plausible numbers."""
        spec, example = self._adapter.spec, _with_prompt(self._example, length)
        slot = Slot(self._adapter, self._device, example, batch, self._guidance, self._fused)
        noise = torch.zeros(spec.noise_shape)
        slot.stage([Job(example, tables_for(RtcConfig("none"), spec, None), noise)])
        return slot

    def _find(self, length: int, count: int) -> Slot:
        batch = next((size for size in self.batch_sizes if size >= count), None)
        if batch is None:
            raise ValueError(f"batch: {count} requests given, prepared for at most {self.batch_sizes[-1]}")
        if (length, batch) not in self.slots:
            raise ValueError(f"prompt: padded to {length} tokens, allowed are {list(self._adapter.prompt_buckets)}")
        return self.slots[length, batch]

    def _pad(self, inputs: Mapping[str, Tensor], length: int) -> Mapping[str, Tensor]:
        return inputs if _prompt_length(inputs) == length else self._adapter.pad_prompt(inputs, length)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        # What inference_mode makes cannot be differentiated later, not even under enable_grad.
        without_gradients = torch.no_grad() if self._differentiates else torch.inference_mode()
        with without_gradients, torch.cuda.stream(self._stream):
            yield


def _prompt_length(inputs: Mapping[str, Tensor]) -> int:
    return inputs[TOKENS].shape[1] if TOKENS in inputs else 0


def _with_prompt(example: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
    """The example with a prompt of `length` tokens; 0: without prompt."""
    prompt = {name: example[name].new_ones(1, length) for name in (TOKENS, TOKEN_MASK) if length}
    return {**example, **prompt}
