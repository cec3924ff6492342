"""Settings and counters of an executor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutorConfig:
    """`mode` sync waits for each inference; every other mode overlaps. Horizons and delays in ticks."""

    mode: str = "identity"
    execution_horizon: int = 8  # s_min: ticks between two launches
    launch_early: bool = True  # launch before s_min where the forecast says that the chunk would run out otherwise
    delay_window: int = 10
    delay_quantile: float = 1.0
    delay_initial: int = 1
    hold_limit_s: float = 0.2  # HOLD becomes STOP after this
    hang_after_s: float = 5.0  # an inference that runs longer is a policy fault
    late_policy: str = "consumed"  # consumed: a late chunk enters where the robot stopped; time: where it would be now
    delay_spike_ratio: float = 3.0  # see DelayForecast
    obs_index_offset: int = 0  # 0: row 0 belongs to the tick of the observation; 1: to the next one, as in the paper
    blend_ticks: int = 0  # cross-fade from the old chunk to the new one over so many ticks
    blend_exclude: tuple[str, ...] = ()  # actions that switch at once
    instant: bool = False  # inference runs inside the tick that launches it: a delay of 0


@dataclass
class Counters:
    """Since construction. Ticks of a wait that the mode asks for (sync, first chunk) are not starved."""

    ticks: int = 0
    missed_ticks: int = 0
    starved_ticks: int = 0
    hold_ticks: int = 0
    stops: int = 0
    chunks: int = 0
    chunks_discarded: int = 0  # results of an older epoch
    chunks_rejected: int = 0  # non-finite, misshapen or refused by the guard
    chunks_expired: int = 0  # so late that no row was left
    chunks_late: int = 0  # adopted later than forecast: some rows that were executed meanwhile were not frozen
    policy_errors: int = 0
