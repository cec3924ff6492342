"""Runs the cells of the benchmark, spread over processes by small groups of episodes.

An episode depends on its plan and its seed alone, so the figures do not depend on how many processes share the work.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from phyai_adapters import load_adapter
from phyai_core.baselines import TemporalEnsemble
from phyai_core.engine import Engine
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference
from phyai_core.types import ActionChunk, InferenceRequest
from phyai_ros.rtc_bench import BenchEpisode, Cell, CellPlan
from phyai_ros.sim.evaluate import FIRST_TEST_SEED, run_episode
from phyai_ros.sim.scene import Scene
from phyai_ros.sim.task import StepSim

EPISODES_PER_JOB = 5


@dataclass(frozen=True)
class Job:
    """Some episodes of one cell."""

    cell: int
    plan: CellPlan
    seeds: range


def run_cells(
    plans: Sequence[CellPlan],
    episodes: int,
    first_seed: int = FIRST_TEST_SEED,
    workers: int = 1,
    on_episodes: Callable[[int], None] = lambda count: None,
) -> list[Cell]:
    """Run every plan with the seeds first_seed, first_seed + 1, ...; `on_episodes` hears how many have just ended.

    Raises ValueError where the camera cannot be rendered or a plan does not fit the policy, RuntimeError when a process
    was killed.
    """
    last = first_seed + episodes
    starts = range(first_seed, last, EPISODES_PER_JOB)
    seeds = [range(start, min(start + EPISODES_PER_JOB, last)) for start in starts]
    jobs = [Job(cell, plan, part) for cell, plan in enumerate(plans) for part in seeds]
    done: dict[Job, list[BenchEpisode]] = {}
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_prepare) as pool:
            futures = {pool.submit(run_job, job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    done[futures[future]] = future.result()
                    on_episodes(len(futures[future].seeds))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise RuntimeError("a process of the benchmark was killed; is there enough memory?") from error
    return [
        Cell(plan, [episode for job in jobs if job.cell == cell for episode in done[job]])
        for cell, plan in enumerate(plans)
    ]


def run_job(job: Job) -> list[BenchEpisode]:
    """Run the episodes of `job` in this process."""
    plan = job.plan
    engine = load_engine(plan.adapter, plan.denoise_steps, plan.guidance)
    with Scene() as scene:
        sim = StepSim(scene)
        return [run_bench_episode(sim, engine, plan, seed) for seed in job.seeds]


def run_bench_episode(sim: StepSim, engine: Engine, plan: CellPlan, seed: int) -> BenchEpisode:
    """One episode, with a fresh executor."""
    infer = _Timed(PolicyInference(engine, plan.rtc, decode=lambda observe: observe(), seed=seed))
    executor = RtcExecutor(engine.spec, plan.executor, TemporalEnsemble(infer) if plan.mode == "ensemble" else infer)
    result = run_episode(sim, executor, lambda request: plan.delay_of(seed, request.seq), seed)
    return BenchEpisode(result, np.array(infer.seconds), executor.counters.chunks_late, engine.spec.num_denoise_steps)


@lru_cache
def load_engine(adapter: str, denoise_steps: int, guidance: str | None) -> Engine:
    """The policy on a CPU; kept, since a process runs many jobs."""
    cpu = torch.device("cpu")
    policy = load_adapter(adapter, None, cpu)
    if denoise_steps:
        policy.set_denoise_steps(denoise_steps)
    return Engine(policy, cpu, guidance=guidance)


class _Timed:
    """Keeps the seconds of each inference, without the picture that it looks at."""

    def __init__(self, infer: PolicyInference) -> None:
        self._infer = infer
        self.seconds: list[float] = []

    def __call__(self, request: InferenceRequest) -> ActionChunk:
        chunk = self._infer(request)
        self.seconds.append(sum(seconds for stage, seconds in chunk.stages_s.items() if stage != "decode"))
        return chunk


def _prepare() -> None:
    torch.set_num_threads(1)  # the episodes are the parallel part
    os.environ.setdefault("LP_NUM_THREADS", "1")
