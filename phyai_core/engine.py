"""A small engine for flow policies: one request at a time, eager, on the device the adapter's weights live on.

One inference is preprocess, encode_prefix, N denoise steps, postprocess.
Letters in shapes: N denoise steps, H action horizon, A' model action dims, A robot action dims.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.rtc import RtcConfig, RtcTables, build_tables
from phyai_core.sampler import Sampler
from phyai_core.types import FloatArray, Observation, PolicySpec


@dataclass(frozen=True)
class EngineResult:
    """One inference: the chunk in both units and the seconds each stage took."""

    latent: FloatArray  # [H, A'] model units
    actions: FloatArray  # [H, A] robot units
    stages_s: dict[str, float]  # preprocess, prefix (vision included), denoise, postprocess


def resolve_device(name: str) -> torch.device:
    """cpu, cuda or cuda:<index> -> device. Raises ValueError when it is unknown or not there; never falls back."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"inference.device is {name!r}; allowed is cpu, cuda or cuda:<index>.")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"inference.device is {name!r}, but torch {torch.__version__} finds no CUDA device here; "
            "check the NVIDIA driver and that torch is a CUDA build, or set it to cpu."
        )
    device = torch.device(name if ":" in name else "cuda:0")
    if device.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"inference.device is {name!r}; allowed on this machine is cuda:0 to cuda:{last}, or cpu.")
    return device


def blank_observation(spec: PolicySpec) -> Observation:
    """An observation of the right shapes that shows nothing: grey images and a state of zeros. For warm-up only."""
    images = {camera.key: np.full((camera.height, camera.width, 3), 128, np.uint8) for camera in spec.cameras}
    return Observation(
        stamp_ns=0,
        images=images,
        state=np.zeros(spec.state_dim, np.float32),
        last_command=np.zeros(spec.action_dim, np.float32),
    )


class Engine:
    """Runs one adapter. Its methods are for one thread at a time: the inference thread."""

    def __init__(self, adapter: Adapter, device: torch.device) -> None:
        """`device` is where `adapter` was loaded. Raises ValueError for a policy that is not a flow policy."""
        steps = adapter.spec.num_denoise_steps
        if steps < 1:
            raise ValueError(
                f"policy {adapter.spec.name!r} has num_denoise_steps {steps}; allowed is 1 or more: "
                "this engine runs flow policies only."
            )
        self.adapter = adapter
        self.spec = adapter.spec
        self.device = device
        self._sampler = Sampler(adapter, device)

    def infer(self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor) -> EngineResult:
        """One chunk from `obs`, conditioned as `tables` say, starting from standard normal noise [H, A'] float32.

        Raises what the adapter raises (ValueError for an observation that does not fit the spec). The result may be
        non-finite: whoever executes it checks.
        """
        stages = _Stages(self.device)
        with torch.inference_mode():
            inputs = {name: tensor.to(self.device) for name, tensor in self.adapter.preprocess(obs).items()}
            stages.close("preprocess")
            prefix = self.adapter.encode_prefix(inputs)
            stages.close("prefix")
            latent = self._sampler(prefix, tables, noise).cpu().numpy()
            stages.close("denoise")
            actions = np.asarray(self.adapter.postprocess(latent, obs), np.float32)
            stages.close("postprocess")
        return EngineResult(latent, actions, stages.seconds)

    def warm_up(self, runs: int = 3, progress: Callable[[int, int], None] | None = None) -> list[float]:
        """Seconds of each of `runs` inferences on a blank observation. `progress(done, runs)` is called after each."""
        spec = self.spec
        tables = build_tables(
            RtcConfig(mode="none"), spec.action_horizon, spec.num_denoise_steps, spec.latent_dim, leftover=None
        )
        noise = np.zeros((spec.action_horizon, spec.latent_dim), np.float32)
        seconds = []
        for done in range(1, runs + 1):
            seconds.append(sum(self.infer(blank_observation(spec), tables, noise).stages_s.values()))
            if progress is not None:
                progress(done, runs)
        return seconds


class _Stages:
    """Seconds between the ends of consecutive stages; waits for the device, so that a stage owns its own work."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._mark_ns = time.perf_counter_ns()

    def close(self, name: str) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now_ns = time.perf_counter_ns()
        self.seconds[name] = (now_ns - self._mark_ns) * 1e-9
        self._mark_ns = now_ns
