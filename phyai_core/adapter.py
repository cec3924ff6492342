"""The adapter contract: what a policy means, apart from how it is run.

Flow time t runs from 0 (noise) to 1 (action); models that run the other way convert inside. Batch is the first axis.
Letters in shapes: B batch, H action horizon, A' model action dims, A robot action dims, T prompt tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from phyai_core.types import FloatArray, Observation, PolicySpec
from phyai_core.validity import Lifetime
from phyai_kernels.dispatch import Dispatcher

if TYPE_CHECKING:
    from phyai_core.sampler import Conditioning


class Adapter(ABC):
    """Semantics of one policy in five methods, or four where a chunk is predicted at once.

    An adapter holds weights and constants, never request state, but for the memory of a recurrent network: it serves
    one robot, and ends where Observation.epoch changes.

    What follows the methods are declarations with defaults: they let a runtime prepare static shapes and keep values.
    """

    spec: PolicySpec

    @classmethod
    @abstractmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> Adapter:
        """Read a checkpoint (None: the shipped weights). Raises ValueError naming the file and the fix."""

    @abstractmethod
    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors with B = 1. Raises ValueError where cameras or state differ from spec.

        Shapes depend on nothing but the spec and, where there are `prompt_buckets`, on the prompt length T.
        """

    @abstractmethod
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Any:
        """Inputs on the device -> what every denoise step reads; computed once per observation."""

    @abstractmethod
    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Model space [H, A'] -> robot units [H, A] in the order of spec.action."""

    # --- one of two ways to a chunk: denoise steps from noise, or none and a single prediction -----------------------

    def init_latents(self, noise: Tensor) -> Tensor:
        """Standard normal noise [B, H, A'] -> latents at t = 0, [B, H, A'] float32."""
        return noise

    def denoise_step(self, prefix: Any, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity dx/dt [B, H, A'] at latents [B, H, A'] and per-row flow time [B, H].

        Pure, of fixed shape and without host synchronisation, so that a CUDA graph can hold it. For policies whose
        spec declares denoise steps.
        """
        raise NotImplementedError(f"{self.spec.name} declares denoise steps, but not how to compute one")

    def predict(self, prefix: Any, noise: Tensor) -> Tensor:
        """The latents [B, H, A'] float32 at once, under the same conditions as denoise_step.

        For policies with spec.num_denoise_steps 0. Those that draw samples use the noise [B, *spec.noise_shape], the
        others ignore it.
        """
        raise NotImplementedError(f"{self.spec.name} declares no denoise steps, and not how to predict without")

    def predict_onto(self, prefix: Any, noise: Tensor, leftover: Tensor, frozen: Tensor) -> Tensor:
        """As `predict`, but leading to `leftover` [B, H, A'] where `frozen` bool [B, H, A'] is true.

        For policies without denoise steps whose spec allows the mode "hard": their own sampler, whatever its kind, has
        to keep the other rows consistent with these. In a first chunk nothing is frozen.
        """
        raise NotImplementedError(f"{self.spec.name} allows the mode hard, but not how to predict onto frozen rows")

    # --- declarations ------------------------------------------------------------------------------------------------

    prompt_buckets: Sequence[int] = ()  # ascending lengths T that the inputs `tokens`, `token_mask` [B, T] come in
    lifetimes: ClassVar[Mapping[str, Lifetime]] = {"prefix": Lifetime.OBSERVATION, "velocity": Lifetime.STEP}
    vision: nn.Module | None = None  # its return ends the stage "vision" of encode_prefix; for timing only
    # Forward differences of denoise_step are taken over this distance. In bfloat16 rounding drowns less than 0.1.
    derivative_step: float = 0.01
    # How far float32 may be from a recording on a CPU, in units of its root mean square; more where sums are recurrent.
    rounding: float = 1e-5
    dispatcher: Dispatcher | None = None  # chooses the kernels of `fuse`; the engine's recipe sets it

    def encode_actions(self, actions: FloatArray, obs: Observation) -> FloatArray:
        """Robot units [V, A] -> model space [V, A'] as seen from `obs`, padding zero: the inverse of `postprocess`.

        For policies with relative actions, whose leftover has to be carried over to the newest observation.
        """
        raise NotImplementedError(f"{self.spec.name} does not say how robot units become model units")

    def set_denoise_steps(self, steps: int) -> None:
        """Run with another number of denoise steps. Raises ValueError where tables of flow time were made for one."""
        trained = self.spec.num_denoise_steps
        if steps != trained and "time_tables" in self.lifetimes:
            raise ValueError(
                f"inference.num_denoise_steps is {steps}; {self.spec.name} was loaded for {trained}: "
                'set it to 0 and write {"num_denoise_steps": ' + str(steps) + "} into phyai.json beside the checkpoint."
            )
        self.spec = replace(self.spec, num_denoise_steps=steps)

    def pad_prompt(self, inputs: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Inputs with the prompt padded to the bucket `length`. For adapters that declare `prompt_buckets`."""
        raise NotImplementedError(f"{self.spec.name} declares prompt buckets, but not how to pad to them")

    def embed_prompt(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """What depends on the prompt alone; handed to encode_prefix as the input `prompt_embedding`.

        For adapters that declare the lifetime of "prompt_embedding": PROMPT.
        """
        raise NotImplementedError(f"{self.spec.name} declares a prompt embedding, but not how to compute it")

    def fuse(self, inputs: Mapping[str, Tensor], given: Conditioning) -> Mapping[str, Callable[[], Tensor | None]]:
        """Launches of one whole inference over these buffers, by stage and in order: vision, prefix, denoise.

        The last one gives the latents at t = 1, [B, H, A']. {}: encode_prefix and denoise_step are run instead. Called
        once for each static shape; the buffers stay the same ones, and CUDA graphs will hold what is launched. The
        first one reads inputs named `image.` alone: it is launched while the others are still on their way.
        """
        return {}
