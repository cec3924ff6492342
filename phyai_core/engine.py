"""The engine of policies: observations in, chunks out, on the device the adapter's weights live on.

One inference is preprocess, encode_prefix, N denoise steps (or one prediction), postprocess; what lies between the
first and the last is one captured graph on a CUDA device. Letters in shapes: N denoise steps, H action horizon, A'
model action dims, A robot action dims.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phyai_core.adapter import Adapter
from phyai_core.compilation import allow_variants, compile_blocks
from phyai_core.reanchor import reanchor
from phyai_core.rtc import RtcConfig, RtcTables, build_tables
from phyai_core.runner import Runner
from phyai_core.slot import Job
from phyai_core.types import FloatArray, Observation, PolicySpec

Progress = Callable[[int, int], None]  # (done, of how many)


@dataclass(frozen=True)
class EngineResult:
    """One inference: the chunk in both units and the seconds each stage took."""

    latent: FloatArray  # [H, A'] model units
    actions: FloatArray  # [H, A] robot units
    stages_s: dict[str, float]  # preprocess, vision (where the adapter tells it apart), prefix, denoise, postprocess


@dataclass(frozen=True)
class PreparedRequest:
    """A request whose observation is already checked and turned into tensors."""

    obs: Observation
    job: Job
    preprocess_s: float


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
        clouds={cloud.key: np.zeros((cloud.max_points, len(cloud.fields)), np.float32) for cloud in spec.clouds},
        state=np.zeros(spec.state_dim, np.float32),
        last_command=np.zeros(spec.action_dim, np.float32),
    )


class Engine:
    """Runs one adapter. `run`, `infer` and `warm_up` are for one thread at a time: the inference thread."""

    def __init__(
        self,
        adapter: Adapter,
        device: torch.device,
        batch_sizes: Sequence[int] = (1,),
        use_graphs: bool = True,
        guidance: str | None = None,
        compiled: bool = False,
        fused: bool = True,
    ) -> None:
        """`device` is where `adapter` was loaded. Raises ValueError for a guidance that needs denoise steps.

        `guidance` is set for the gradient modes of RTC, which change what every denoise step computes. `compiled` fuses
        small operations with torch.compile while graphs are captured. `fused`: an adapter that brings its own launches
        is run by them (never with a guidance); its methods, and with them `compiled`, are then not used.
        """
        if guidance and not adapter.spec.num_denoise_steps:
            raise ValueError(f"rtc.mode is {guidance!r}; {adapter.spec.name!r} has no denoise steps to guide.")
        self.adapter = adapter
        self.spec = adapter.spec
        self.device = device
        self.guidance = guidance
        example = adapter.preprocess(blank_observation(self.spec))
        self.runner = Runner(adapter, device, example, batch_sizes, use_graphs, guidance, fused)
        self._compiled = compiled
        if compiled:
            if not self.runner.captures:
                raise ValueError("inference.compile is true; allowed is false where no CUDA graphs are captured.")
            compile_blocks(adapter)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """How many requests one `run` may take; numbers in between are filled up."""
        return self.runner.batch_sizes

    @property
    def kernel_choices(self) -> str:
        """After the warm-up: what the choices of kernels rest on, in words; empty where there were none to make."""
        dispatcher = self.adapter.dispatcher
        return dispatcher.summary() if dispatcher is not None and dispatcher.choices else ""

    def preprocess(self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor) -> PreparedRequest:
        """Check and convert a request; from any thread. `noise` is standard normal, of spec.noise_shape.

        Raises what the adapter raises: ValueError for an observation that does not fit the spec.
        """
        started_ns = time.perf_counter_ns()
        tables = reanchor(tables, self.adapter.encode_actions, obs)
        job = Job(self.adapter.preprocess(obs), tables, noise)
        return PreparedRequest(obs, job, (time.perf_counter_ns() - started_ns) * 1e-9)

    def run(self, requests: Sequence[PreparedRequest]) -> list[EngineResult]:
        """One batch, in one call of the network; each robot gets what it would get alone."""
        latents, stages_s = self.runner.run([request.job for request in requests])
        return [self._finish(*pair, stages_s) for pair in zip(requests, latents, strict=True)]

    def infer(self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor) -> EngineResult:
        """One chunk from `obs`, conditioned as `tables` say, starting from standard normal noise float32.

        Raises what the adapter raises. The result may be non-finite: whoever executes it checks.
        """
        return self.run([self.preprocess(obs, tables, noise)])[0]

    def warm_up(self, runs: int = 3, progress: Progress | None = None) -> list[float]:
        """Capture all graphs, then infer `runs` times on a blank observation. `progress` hears each of these.

        Returns the seconds of each inference. Afterwards no request waits for anything to be prepared.
        """
        request, seconds = blank_request(self.spec), []
        tell = _Counter(self.runner.captures + runs, progress)
        with allow_variants() if self._compiled else nullcontext():
            self.runner.prepare(tell)
        for _ in range(runs):
            started_ns = time.perf_counter_ns()
            self.infer(*request)
            seconds.append((time.perf_counter_ns() - started_ns) * 1e-9)
            tell()
        return seconds

    def close(self) -> None:
        """Give back graphs and buffers; the weights go with the adapter."""
        self.runner.close()

    def _finish(self, request: PreparedRequest, latent: FloatArray, stages_s: dict[str, float]) -> EngineResult:
        started_ns = time.perf_counter_ns()
        actions = np.asarray(self.adapter.postprocess(latent, request.obs), np.float32)
        postprocess_s = (time.perf_counter_ns() - started_ns) * 1e-9
        parts = dict(stages_s)
        preprocess_s = request.preprocess_s + parts.pop("staging")
        return EngineResult(latent, actions, {"preprocess": preprocess_s, **parts, "postprocess": postprocess_s})


def plain_tables(spec: PolicySpec) -> RtcTables:
    """Tables of a chunk that is tied to nothing."""
    return build_tables(RtcConfig("none"), spec.action_horizon, spec.num_denoise_steps, spec.latent_dim, leftover=None)


def blank_request(spec: PolicySpec) -> tuple[Observation, RtcTables, FloatArray]:
    """Arguments of `infer` that ask for nothing in particular."""
    return blank_observation(spec), plain_tables(spec), np.zeros(spec.noise_shape, np.float32)


class _Counter:
    """Calls `progress(done, total)` with a rising count."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
