"""Builds what a configured node runs: policy, executor, output. One function per part, errors as sentences."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phyai_adapters import load_adapter
from phyai_core.baselines import MAX_BLEND_TICKS, TemporalEnsemble
from phyai_core.engine import Engine
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference
from phyai_core.inference_side import Infer
from phyai_core.limiter import Limiter
from phyai_core.recipe import EngineRecipe
from phyai_core.remote import RemoteEngine
from phyai_core.rtc import GRADIENT_MODES, RtcConfig
from phyai_core.tracking import TrackingGuard
from phyai_core.types import PolicySpec
from phyai_ros import output_assembly
from phyai_ros.chunk_guard import ChunkGuard
from phyai_ros.inference_process import InferenceProcess
from phyai_ros.inference_thread import InferenceThread
from phyai_ros.joint_units import ConvertedInference, JointUnits
from phyai_ros.joints import robot_joint_names
from phyai_ros.limit_sources import resolve_limits
from phyai_ros.log_guard import keep_logging
from phyai_ros.motion_guard import MotionGuard
from phyai_ros.output_assembly import open_output
from phyai_ros.outputs.base import Output
from phyai_ros.robot_checks import joint_actions
from phyai_ros.settings import Settings
from phyai_ros.spec_checks import ALWAYS_POSSIBLE, check_against_spec

if TYPE_CHECKING:
    from rclpy.node import Node


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy that has run once, and the settings with everything left to the policy filled in.

    `latency_s` is the p99 of the warm-up but the first, the injected delay included; NaN without a warm-up.
    """

    engine: Engine | RemoteEngine
    settings: Settings
    latency_s: float = math.nan

    @property
    def spec(self) -> PolicySpec:
        return self.engine.spec

    def close(self) -> None:
        """Give back graphs, buffers and the child, if there is one."""
        self.engine.close()


def load_policy(settings: Settings, log: Callable[[str], None]) -> LoadedPolicy:
    """Load, check against the settings and warm up. Raises ValueError (ParameterError) with what is wrong."""
    engine = build_engine(settings, log)
    try:
        settings = check_against_spec(settings, engine.spec)
        seconds = engine.warm_up(settings.inference.warmup_runs)
    except BaseException:
        engine.close()
        raise
    latency_s = math.nan
    if seconds:
        p99_s = float(np.quantile(seconds[1:] or seconds, 0.99, method="higher"))
        latency_s = p99_s + settings.inference.inject_delay_s
        if engine.kernel_choices:
            log(f"{engine.kernel_choices} (see phyai-ros profile --explain)")
        log(f"policy is warm: first inference {seconds[0] * 1e3:.1f} ms, then at most {latency_s * 1e3:.1f} ms")
    return LoadedPolicy(engine, settings, latency_s)


def build_engine(settings: Settings, log: Callable[[str], None]) -> Engine | RemoteEngine:
    """The policy in this process, or in a child of its own. Raises ValueError in the policy's own words."""
    inference, mode = settings.inference, settings.rtc.mode
    log(f"loading policy: {inference.adapter} on {inference.device} ({inference.placement})")
    recipe = EngineRecipe(
        load_adapter,
        inference.adapter,
        Path(inference.checkpoint) if inference.checkpoint else None,
        inference.device,
        inference.threads,
        inference.num_denoise_steps,
        guidance=mode if mode in GRADIENT_MODES else None,
        compiled=inference.compile,
        kernel_profile=Path(inference.kernel_profile) if inference.kernel_profile else None,
    )
    if inference.placement == "process":
        return RemoteEngine(recipe, inference.hang_after_s)
    with keep_logging():
        return recipe.build()


def place_inference(
    executor: RtcExecutor, policy: LoadedPolicy, log: Callable[[str], None]
) -> InferenceThread | InferenceProcess:
    """What serves the requests of `executor`, by inference.placement."""
    if isinstance(policy.engine, RemoteEngine):
        return InferenceProcess(executor, policy.engine, log)
    return InferenceThread(executor)


def build_executor(
    policy: LoadedPolicy, now_ns: Callable[[], int] = time.monotonic_ns, motion: MotionGuard | None = None
) -> RtcExecutor:
    """`now_ns` is the steady clock, or the logical one of a replay. `motion`: the guards that the pipeline uses too."""
    motion = motion or build_motion(policy)
    executor = RtcExecutor(policy.spec, _executor_config(policy), _build_inference(policy), motion.refuse, now_ns)
    executor.fit = motion.fit
    return executor


def _build_inference(policy: LoadedPolicy) -> Infer:
    """Request -> chunk in robot units."""
    settings, rtc, seed = policy.settings, policy.settings.rtc, policy.settings.inference.seed
    conditioning = RtcConfig(
        mode="none" if rtc.mode in ALWAYS_POSSIBLE else rtc.mode,
        schedule=rtc.schedule,
        mask_ext=None if rtc.mask_ext == "full" else rtc.mask_ext,
        max_guidance_weight=rtc.max_guidance_weight or None,
        exclude=rtc.exclude,
    )
    infer = PolicyInference(
        policy.engine,
        conditioning,
        decode=lambda inputs: inputs.decode(),
        seed=secrets.randbits(31) if seed < 0 else seed,
        inject_delay_s=settings.inference.inject_delay_s,
    )
    units = JointUnits.from_settings(settings.joints, policy.spec)
    if not units.trivial:
        infer = ConvertedInference(infer, units)
    return TemporalEnsemble(infer) if rtc.mode == "ensemble" else infer


def _executor_config(policy: LoadedPolicy) -> ExecutorConfig:
    settings, rtc = policy.settings, policy.settings.rtc
    return ExecutorConfig(
        mode=rtc.mode,
        execution_horizon=1 if rtc.mode == "ensemble" else rtc.execution_horizon,
        delay_window=rtc.delay_window,
        delay_quantile=rtc.delay_quantile,
        delay_initial=rtc.delay_initial or forecast_delay(policy),
        hold_limit_s=settings.executor.hold_limit_s,
        hang_after_s=settings.inference.hang_after_s,
        late_policy=settings.executor.late_policy,
        delay_spike_ratio=rtc.delay_spike_ratio,
        obs_index_offset=rtc.obs_index_offset,
        blend_ticks=MAX_BLEND_TICKS if rtc.mode == "blend" else 0,
        blend_exclude=rtc.exclude,
        instant=rtc.mode == "instant",
    )


def build_motion(policy: LoadedPolicy, robot_description: str = "") -> MotionGuard:
    """Limits, start and tracking guards. Raises ValueError naming the source of a limit that is wrong."""
    settings, spec = policy.settings, policy.spec
    limits = resolve_limits(robot_joint_names(settings.joints, spec), settings.limits, robot_description)
    mode = settings.limits.mode
    measured = np.array(joint_actions(settings, spec), bool)
    chunks = ChunkGuard(limits, spec.dt_s, settings.start, mode == "refuse", measured)
    limiter = None
    if mode == "limit":
        limiter = Limiter(limits, spec.dt_s, settings.limits.max_slowdown, settings.limits.max_clip_rad)
    rules = settings.tracking
    tracking = TrackingGuard(limits.names, rules.max_error, rules.max_effort, rules.time_s)
    return MotionGuard(chunks, limiter, tracking, settings.start, spec.dt_s)


def forecast_delay(policy: LoadedPolicy) -> int:
    """Inference delay d in ticks that the warm-up lets expect; at most half the action horizon, at least 1."""
    if math.isnan(policy.latency_s):
        return 1
    return max(1, min(math.ceil(policy.latency_s / policy.spec.dt_s), policy.spec.action_horizon // 2))


def check_latency(policy: LoadedPolicy) -> None:
    """Raise ValueError when inference is so slow that the running chunk would end before the next one is there."""
    rtc, horizon, dt_s = policy.settings.rtc, policy.spec.action_horizon, policy.spec.dt_s
    allowed_s = (horizon - rtc.execution_horizon) * dt_s
    if rtc.mode == "instant":
        if policy.latency_s > dt_s / 2:
            raise ValueError(
                f"inference takes {policy.latency_s:.4f} s (p99 of the warm-up); allowed with rtc.mode instant is "
                f"{dt_s / 2:.4f} s, half a control period. Make inference faster, or set another rtc.mode."
            )
        return
    if rtc.mode == "sync" or not policy.latency_s > allowed_s:
        return
    raise ValueError(
        f"inference takes {policy.latency_s:.3f} s (p99 of the warm-up); allowed is {allowed_s:.3f} s, the "
        f"{horizon} - {rtc.execution_horizon} rows of {dt_s:g} s that are left after rtc.execution_horizon. Lower it, "
        "make inference faster, or set rtc.mode to sync."
    )


def build_output(node: Node, policy: LoadedPolicy) -> Output:
    """The output with its publishers and action clients."""
    return open_output(node, policy.settings, policy.spec)


def make_output(policy: LoadedPolicy, publish: Callable[[str, Any], None]) -> Output:
    """The output without a node, sending its messages through `publish(topic, message)`."""
    return output_assembly.make_output_by_topic(policy.settings, policy.spec, publish)
