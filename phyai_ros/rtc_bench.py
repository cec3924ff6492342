"""The closed-loop benchmark of execution modes under delay: what a cell is, its figures, and whether its mode helps.

A cell is the built-in task, run for a number of episodes by the executor of the live node on a logical clock, with one
mode and one inference delay. Every cell sees the same episodes: seeds fix starts, noise and random delays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_core.baselines import MAX_BLEND_TICKS
from phyai_core.execution import ExecutorConfig
from phyai_core.rtc import GRADIENT_MODES, RtcConfig
from phyai_ros.sim.evaluate import EpisodeResult, Evaluation

S_MIN = 8  # of 32 rows, as in config/demo.yaml
MODES = ("sync", "none", "ensemble", "blend", "hard", "ramp", "identity", "fd", "fd_lagged", "vjp", "trained")
UNCONDITIONED = ("sync", "none", "ensemble", "blend")
MASK_EXT = {"ramp": 8}  # rows; over the full mask, the default, ramp hardly plans anything new
JITTER = (1, 9)  # ticks, both included
PLAIN, FOR_RTC = "flow_tiny", "flow_tiny_rtc"  # adapters: the policy, and the one trained to continue a prefix
BETTER_BY = 0.1  # a smoother cell is one whose seams or jerk are lower by this share


@dataclass(frozen=True)
class CellPlan:
    """One cell of the table. `delay` in ticks from launch to adoption: one number, or the bounds of a random one."""

    mode: str
    delay: int | tuple[int, int]
    s_min: int = S_MIN
    mask_ext: int | None = None
    denoise_steps: int = 0  # 0: as the policy was trained

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"modes: {self.mode!r} is unknown; allowed are {', '.join(MODES)}.")
        if not 0 <= self.longest_delay <= 31:
            raise ValueError(f"delays: {self.delay} is not allowed; allowed are 0 to 31 ticks of 40 ms.")

    @property
    def longest_delay(self) -> int:
        return self.delay if isinstance(self.delay, int) else self.delay[1]

    @property
    def adapter(self) -> str:
        return FOR_RTC if self.mode == "trained" else PLAIN

    @property
    def guidance(self) -> str | None:
        """What the engine has to be made with."""
        return self.mode if self.mode in GRADIENT_MODES else None

    @property
    def rtc(self) -> RtcConfig:
        return RtcConfig("none" if self.mode in UNCONDITIONED else self.mode, mask_ext=self.mask_ext)

    @property
    def executor(self) -> ExecutorConfig:
        """As the node would be set up, knowing the delay from its warm-up."""
        return ExecutorConfig(
            mode=self.mode,
            execution_horizon=1 if self.mode == "ensemble" else self.s_min,
            delay_initial=self.longest_delay,
            blend_ticks=MAX_BLEND_TICKS if self.mode == "blend" else 0,
            instant=self.longest_delay == 0,
        )

    @property
    def execution_horizon(self) -> int:
        """s, the ticks between two launches: at least the delay, since there is one inference at a time."""
        return max(self.executor.execution_horizon, self.longest_delay)

    def delay_of(self, seed: int, seq: int) -> int:
        """Ticks that inference `seq` of the episode `seed` takes."""
        if isinstance(self.delay, int):
            return self.delay
        low, high = self.delay
        return int(np.random.default_rng([seed, seq]).integers(low, high + 1))


@dataclass(frozen=True)
class BenchEpisode:
    """An episode and what its chunks cost. `infer_s` [chunks] leaves the picture out: that is the simulator's time."""

    result: EpisodeResult
    infer_s: NDArray[np.float64]
    chunks_late: int
    denoise_steps: int


@dataclass(frozen=True)
class Cell:
    """A plan and its episodes, in the order of their seeds."""

    plan: CellPlan
    episodes: Sequence[BenchEpisode] = field(repr=False)

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation.of(episode.result for episode in self.episodes)

    def figures(self) -> dict[str, Any]:
        """The figures under the names they have in the JSON file; unknown is null. Only chunk_ms is a time."""
        total, plan = self.evaluation, self.plan
        return {
            "mode": plan.mode,
            "delay": plan.delay if isinstance(plan.delay, int) else list(plan.delay),
            "s": plan.execution_horizon,
            "mask_ext": "full" if plan.mask_ext is None else plan.mask_ext,
            "denoise_steps": self.episodes[0].denoise_steps,
            "episodes": total.episodes,
            "success": known(total.success_rate),
            "success_ci": [known(bound) for bound in wilson_interval(total.successes, total.episodes)],
            "contacts": total.contacts,
            "timeouts": total.timeouts,
            "seam_mrad_mean": known(total.seam_mrad),
            "seam_mrad_p99": known(total.seam_p99_mrad),
            "jerk": known(total.jerk_rad_s3),
            "mode_flips": known(total.flips_per_episode),
            "starved_ticks": total.starved_ticks,
            "chunks_late": sum(episode.chunks_late for episode in self.episodes),
            "chunk_ms": known(1e3 * float(np.median(np.concatenate([e.infer_s for e in self.episodes])))),
        }


def table_plans(modes: Iterable[str], delays: Iterable[int], denoise_steps: int = 0) -> list[CellPlan]:
    """Modes x delays."""
    delays = list(delays)
    return [
        CellPlan(mode, delay, mask_ext=MASK_EXT.get(mode), denoise_steps=denoise_steps)
        for mode in modes
        for delay in delays
    ]


def jitter_plans(modes: Iterable[str], denoise_steps: int = 0) -> list[CellPlan]:
    """Each mode with a delay that is drawn anew for every chunk."""
    return [CellPlan(mode, JITTER, mask_ext=MASK_EXT.get(mode), denoise_steps=denoise_steps) for mode in modes]


def sweep_plans(delay: int = 8) -> list[CellPlan]:
    """What mask, execution horizon and denoise steps do to mode identity, with naive swaps to compare."""
    plans = []
    for steps in (5, 10):
        for s_min in (8, 12, 16):
            plans.append(CellPlan("none", delay, s_min, denoise_steps=steps))
            plans += [CellPlan("identity", delay, s_min, ext, steps) for ext in (0, 4, 12, None)]
    return plans


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson's score): right for few trials and for rates near 0 and 1."""
    rate, spread = successes / trials, z * z / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def judge(figures: Sequence[dict[str, Any]]) -> list[str]:
    """For each cell, what its mode changes against `none` at the same delay, horizon and steps; one word or two."""

    def key(cell: dict[str, Any]) -> tuple:
        return str(cell["delay"]), cell["denoise_steps"], cell["s"]

    naive = {key(cell)[:2]: cell for cell in figures if cell["mode"] == "none"}
    naive |= {key(cell): cell for cell in figures if cell["mode"] == "none"}
    return [_compare(cell, naive.get(key(cell), naive.get(key(cell)[:2]))) for cell in figures]


def _compare(cell: dict[str, Any], naive: dict[str, Any] | None) -> str:
    if naive is None or cell is naive:
        return ""
    if cell["success_ci"][0] > naive["success_ci"][1]:
        return "succeeds more"
    if cell["success_ci"][1] < naive["success_ci"][0]:
        return "succeeds less"
    changes = [_change(cell[name], naive[name]) for name in ("seam_mrad_mean", "jerk")]
    if all(change <= -BETTER_BY for change in changes):
        return "smoother"
    if all(change >= BETTER_BY for change in changes):
        return "rougher"
    return "partly smoother" if min(changes) <= -BETTER_BY else "no help"


def _change(value: float | None, reference: float | None) -> float:
    return value / reference - 1.0 if value is not None and reference else 0.0


def known(value: float) -> float | None:
    """Rounded for JSON, which has no NaN."""
    return round(float(value), 4) if math.isfinite(value) else None
