"""Closed-loop evaluation in the stepped simulation: the executor of the live node on a logical clock.

An inference takes a given number of ticks, whatever the machine; so figures do not depend on its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phyai_core.engine import Engine
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference, seeded_noise
from phyai_core.metrics import jerk, seams
from phyai_core.rtc import RtcConfig, build_tables
from phyai_core.stepping import SteppedInference
from phyai_core.types import ActionChunk, FloatArray, InferenceRequest
from phyai_ros.sim.arm import CONTROL_DT_S, POST_X_M
from phyai_ros.sim.expert import point_for
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.task import NO_AGE, Outcome, SensorAge, StepSim, draw_start

FIRST_TEST_SEED = 100_000  # far from the seeds of demonstrations
BESIDE_POST_M = 0.04
DT_NS = round(CONTROL_DT_S * 1e9)
NAIVE = ExecutorConfig(mode="none", execution_horizon=8)
NO_GUIDANCE = RtcConfig(mode="none")


@dataclass(frozen=True)
class EpisodeResult:
    """One episode. Rows are what was commanded, one per tick; ticks without an action repeat the row before."""

    outcome: Outcome
    rows: FloatArray  # [T, A] rad
    swaps: tuple[int, ...]  # ticks at which a new chunk took over a running one
    flips: int  # of these, how often the new chunk passes the post on the other side
    starved_ticks: int

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCESS

    @property
    def ticks(self) -> int:
        return len(self.rows)

    @property
    def seams_mrad(self) -> NDArray[np.float64]:
        """Largest absolute second difference over joints at each swap."""
        return 1e3 * seams(self.rows, self.swaps)

    @property
    def jerk_rad_s3(self) -> float:
        """RMS of the third difference / dt^3 over ticks and joints."""
        return jerk(self.rows, CONTROL_DT_S)


@dataclass(frozen=True)
class Evaluation:
    """Several episodes summed up."""

    episodes: int
    successes: int
    contacts: int
    timeouts: int
    success_time_s: float  # mean over successes; NaN without one
    seam_mrad: float  # mean over swaps
    seam_p99_mrad: float
    jerk_rad_s3: float  # mean over episodes
    flips_per_episode: float
    starved_ticks: int

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes

    @staticmethod
    def of(results: Iterable[EpisodeResult]) -> Evaluation:
        """Sum up `results`, at least one."""
        results = list(results)
        outcomes = [result.outcome for result in results]
        all_seams = np.concatenate([result.seams_mrad for result in results])
        times_s = [result.ticks * CONTROL_DT_S for result in results if result.success]

        def mean(values: Sequence[float] | NDArray[np.float64]) -> float:
            return float(np.mean(values)) if len(values) else float("nan")

        return Evaluation(
            episodes=len(results),
            successes=outcomes.count(Outcome.SUCCESS),
            contacts=outcomes.count(Outcome.CONTACT),
            timeouts=outcomes.count(Outcome.TIMEOUT),
            success_time_s=mean(times_s),
            seam_mrad=mean(all_seams),
            seam_p99_mrad=float(np.quantile(all_seams, 0.99)) if len(all_seams) else float("nan"),
            jerk_rad_s3=mean([result.jerk_rad_s3 for result in results if result.ticks > 3]),
            flips_per_episode=mean([result.flips for result in results]),
            starved_ticks=sum(result.starved_ticks for result in results),
        )


@dataclass(frozen=True)
class Setting:
    """How the policy is executed. `delay_ticks` from launch to adoption, 0 for an inference that takes no time."""

    delay_ticks: int = 0
    executor: ExecutorConfig = NAIVE
    rtc: RtcConfig = NO_GUIDANCE
    sensor_age: SensorAge = NO_AGE


def evaluate(
    engine: Engine,
    setting: Setting,
    episodes: int = 100,
    first_seed: int = FIRST_TEST_SEED,
    on_episode: Callable[[EpisodeResult], None] = lambda result: None,
) -> Evaluation:
    """Run episodes `first_seed`, `first_seed` + 1, ...; a seed fixes start, puck, noise and sensor ages."""
    results = []
    with Scene() as scene:
        sim = StepSim(scene, setting.sensor_age)
        for seed in range(first_seed, first_seed + episodes):
            if setting.delay_ticks == 0:
                result = run_receding_episode(sim, engine, setting.executor.execution_horizon, seed)
            else:
                executor = make_executor(engine, setting.executor, setting.rtc, seed)
                result = run_episode(sim, executor, setting.delay_ticks, seed)
            results.append(result)
            on_episode(result)
    return Evaluation.of(results)


def make_executor(engine: Engine, config: ExecutorConfig, rtc: RtcConfig, seed: int) -> RtcExecutor:
    """An executor whose observations are functions, called only in ticks that launch."""
    return RtcExecutor(engine.spec, config, PolicyInference(engine, rtc, decode=lambda observe: observe(), seed=seed))


def run_episode(
    sim: StepSim, executor: RtcExecutor, delay_ticks: int | Callable[[InferenceRequest], int], seed: int
) -> EpisodeResult:
    """One episode under `executor` (see `make_executor`); each inference is adopted `delay_ticks` after its launch.

    1 tick is the least that overlapped execution can have. In ticks without an action the last command stands.
    """
    sim.reset(draw_start(np.random.default_rng(seed)), seed)
    constant = delay_ticks if isinstance(delay_ticks, int) else None
    inference = SteppedInference(executor, delay_ticks if constant is None else lambda request: constant)
    log = _Log(sim, executor.counters.starved_ticks)
    k = 0
    while sim.judge.outcome is Outcome.RUNNING:
        inference.before_tick(k)
        command = executor.tick(k, k * DT_NS, sim.observe)
        inference.after_tick()
        log.step(command.row, command.chunk)
        k += 1
    return log.result(executor.counters.starved_ticks)


def run_receding_episode(sim: StepSim, engine: Engine, execution_horizon: int, seed: int) -> EpisodeResult:
    """One episode in which inference takes no time: every `execution_horizon` ticks a new chunk is used from row 0."""
    sim.reset(draw_start(np.random.default_rng(seed)), seed)
    spec = engine.spec
    tables = build_tables(NO_GUIDANCE, spec.action_horizon, spec.num_denoise_steps, spec.latent_dim, None)
    log = _Log(sim, starved_before=0)
    seq = 0
    while sim.judge.outcome is Outcome.RUNNING:
        noise = seeded_noise(seed, seq, spec.action_horizon, spec.latent_dim)
        result = engine.infer(sim.observe(), tables, noise)
        chunk = ActionChunk(0, seq, log.ticks, 0, result.actions, result.latent, DT_NS)
        for row in chunk.actions[:execution_horizon]:
            if sim.judge.outcome is Outcome.RUNNING:
                log.step(row, chunk)
        seq += 1
    return log.result(starved_now=0)


class _Log:
    """Steps the simulation and writes down what was commanded."""

    def __init__(self, sim: StepSim, starved_before: int) -> None:
        self._sim = sim
        self._starved_before = starved_before
        self._rows: list[FloatArray] = []
        self._swaps: list[int] = []
        self._flips = 0
        self._chunk: ActionChunk | None = None

    @property
    def ticks(self) -> int:
        return len(self._rows)

    def step(self, row: FloatArray | None, chunk: ActionChunk | None) -> None:
        if chunk is not None and self._chunk is not None and chunk is not self._chunk:
            self._swaps.append(len(self._rows))
            self._flips += passing_side(chunk.actions) * passing_side(self._chunk.actions) < 0
        self._chunk = chunk or self._chunk
        row = self._sim.last_command if row is None else row
        self._rows.append(row)
        self._sim.step(row)

    def result(self, starved_now: int) -> EpisodeResult:
        starved_ticks = starved_now - self._starved_before
        return EpisodeResult(
            self._sim.judge.outcome, np.stack(self._rows), tuple(self._swaps), self._flips, starved_ticks
        )


def passing_side(actions: FloatArray) -> int:
    """On which side rows [H, A] pass the post: +1 left, -1 right, 0 when none of them is beside it."""
    points = point_for(actions)
    beside = points[np.abs(points.real - POST_X_M) < BESIDE_POST_M]
    return int(np.sign(beside.imag.mean())) if len(beside) else 0
