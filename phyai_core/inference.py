"""From a launch request to a finished chunk: decode, condition on the leftover, sample. Runs on the inference side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from phyai_core.engine import Engine
from phyai_core.rtc import GRADIENT_MODES, RtcConfig, tables_for
from phyai_core.types import ActionChunk, FloatArray, InferenceRequest, Observation, PolicySpec

NS_PER_S = 1_000_000_000


def seeded_noise(seed: int, seq: int, rows: int, latent_dim: int) -> FloatArray:
    """Standard normal noise [rows, A'] that depends on (seed, seq) only, so that a run can be repeated."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, seq])))
    return generator.standard_normal((rows, latent_dim), dtype=np.float32)


class PolicyInference:
    """Callable for the executor: InferenceRequest -> ActionChunk.

    `decode` turns what the tick recorded into an Observation (image decoding happens here, off the control thread).
    `inject_delay_s` sleeps that long per chunk: a slower policy on demand, for demonstrations and tests.
    """

    def __init__(
        self,
        engine: Engine,
        rtc: RtcConfig,
        decode: Callable[[Any], Observation],
        seed: int = 0,
        inject_delay_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ValueError naming the parameter when a value, or the mode for this policy, is not allowed."""
        check_mode(rtc, engine.spec)
        check_guidance(rtc, engine)
        if seed < 0:
            raise ValueError(f"inference.seed is {seed}; allowed is an integer >= 0.")
        if not 0.0 <= inject_delay_s < np.inf:
            raise ValueError(f"inference.inject_delay_s is {inject_delay_s}; allowed is a finite number >= 0.")
        self.engine = engine
        self.rtc = rtc
        self.seed = seed
        self.inject_delay_s = inject_delay_s
        self._decode = decode
        self._sleep = sleep

    def __call__(self, request: InferenceRequest) -> ActionChunk:
        """Raises what `decode` or the adapter raises; the executor turns that into a fault with a reason."""
        started_ns = time.perf_counter_ns()
        obs = replace(self._decode(request.obs), epoch=request.epoch)
        stages_s = {"decode": (time.perf_counter_ns() - started_ns) * 1e-9}
        spec = self.engine.spec
        noise = seeded_noise(self.seed, request.seq, *spec.noise_shape)
        tables = tables_for(self.rtc, spec, request.leftover)
        result = self.engine.infer(obs, tables, noise)
        stages_s.update(result.stages_s)
        if self.inject_delay_s > 0.0:
            self._sleep(self.inject_delay_s)
            stages_s["injected"] = self.inject_delay_s
        return ActionChunk(
            epoch=request.epoch,
            seq=request.seq,
            base_tick=request.base_tick,
            obs_stamp_ns=obs.stamp_ns,
            actions=result.actions,
            latent=result.latent,
            dt_ns=round(spec.dt_s * NS_PER_S),
            sources=obs.sources,
            stages_s=stages_s,
        )


def check_mode(rtc: RtcConfig, spec: PolicySpec) -> None:
    """Raise ValueError when the policy cannot run the configured mode."""
    if rtc.mode not in spec.rtc_modes:
        allowed = ", ".join(spec.rtc_modes)
        raise ValueError(f"rtc.mode is {rtc.mode!r}; allowed for policy {spec.name!r} is {allowed}.")
    names = [feature.name for feature in spec.action]
    unknown = [name for name in rtc.exclude if name not in names]
    if unknown:
        raise ValueError(
            f"rtc.exclude is {list(rtc.exclude)}; allowed are actions of {spec.name!r}: {', '.join(names)}."
        )
    if rtc.exclude and rtc.mode == "trained":
        raise ValueError(
            f"rtc.exclude is {list(rtc.exclude)}; allowed is none with rtc.mode trained, because the policy was "
            "trained to continue whole rows."
        )


def check_guidance(rtc: RtcConfig, engine: Engine) -> None:
    """Raise ValueError when the engine was prepared for another way of guidance."""
    wanted = rtc.mode if rtc.mode in GRADIENT_MODES else None
    if engine.guidance != wanted:
        raise ValueError(
            f"rtc.mode is {rtc.mode!r}; the engine was made with guidance {engine.guidance!r}, not {wanted!r}."
        )
