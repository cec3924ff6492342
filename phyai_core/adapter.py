"""The adapter contract: what a policy means, apart from how it is run.

Flow time t runs from 0 (noise) to 1 (action); models that run the other way convert inside. Batch is the first axis.
Letters in shapes: B batch, H action horizon, A' model action dims, A robot action dims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phyai_core.types import FloatArray, Observation, PolicySpec


class Adapter(ABC):
    """Semantics of one policy in five methods. An adapter holds weights and constants, never request state."""

    spec: PolicySpec

    @classmethod
    @abstractmethod
    def load(cls, checkpoint: Path | None, device: torch.device) -> Adapter:
        """Read a checkpoint (None: the shipped weights). Raises ValueError naming the file and the fix."""

    @abstractmethod
    def preprocess(self, obs: Observation) -> dict[str, Tensor]:
        """Observation -> CPU tensors with B = 1. Raises ValueError where cameras or state differ from spec."""

    @abstractmethod
    def encode_prefix(self, inputs: Mapping[str, Tensor]) -> Any:
        """Inputs on the device -> what every denoise step reads; computed once per observation."""

    @abstractmethod
    def init_latents(self, noise: Tensor) -> Tensor:
        """Standard normal noise [B, H, A'] -> latents at t = 0, [B, H, A'] float32."""

    @abstractmethod
    def denoise_step(self, prefix: Any, latents: Tensor, flow_time: Tensor) -> Tensor:
        """Velocity dx/dt [B, H, A'] at latents [B, H, A'] and per-row flow time [B, H].

        Pure, of fixed shape and without host synchronisation, so that a CUDA graph can hold it.
        """

    @abstractmethod
    def postprocess(self, latents: FloatArray, obs: Observation) -> FloatArray:
        """Model space [H, A'] -> robot units [H, A] in the order of spec.action."""
