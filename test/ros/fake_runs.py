"""Run records made by formula: a smooth path to one side, executed with or without jumps at the swaps of chunks."""

from __future__ import annotations

import numpy as np

from phyai_ros.run_record import Episode, RunRecord

DT_S, EPISODE_TICKS, PERIOD_TICKS, HORIZON = 0.04, 80, 8, 32
PAUSE_S = 1.0  # between episodes nothing is commanded


def make_record(mode: str = "rtc", episodes: int = 2, jump_rad: float = 0.0, inference_s: float = 0.25) -> RunRecord:
    """Joint 0 follows 0.4 sin^2; odd chunks are `jump_rad` aside. In mode sync six ticks of each period have no row."""
    span_s = EPISODE_TICKS * DT_S + PAUSE_S
    ticks = np.arange(EPISODE_TICKS)
    moving = ticks % (PERIOD_TICKS + 6) < PERIOD_TICKS if mode == "sync" else np.ones(EPISODE_TICKS, bool)
    times = np.concatenate([span_s * i + DT_S * ticks[moving] for i in range(episodes)])
    rows = np.concatenate([_path(ticks, jump_rad)[moving]] * episodes)
    swaps = ticks[moving][::PERIOD_TICKS]
    plans = np.stack([_path(swap + np.arange(HORIZON), 0.0) + _offset(swap, jump_rad) for swap in swaps])
    count = episodes * len(swaps)
    timing = {
        "seam": np.tile(np.r_[np.nan, np.full(len(swaps) - 1, jump_rad)], episodes),
        "l_inference": np.full(count, inference_s),
        "l_env": np.full(count, PERIOD_TICKS * DT_S),
        "l_control": np.full(count, max(PERIOD_TICKS * DT_S, inference_s)),
        "l_vision": np.full(count, np.nan),
    }
    return RunRecord(
        mode=mode,
        joint_names=("yaw", "shoulder"),
        dt_s=DT_S,
        command_times_s=times,
        command_rows=rows,
        chunk_times_s=np.concatenate([span_s * i + DT_S * swaps for i in range(episodes)]),
        chunk_epochs=np.repeat(np.arange(episodes), len(swaps)),
        chunk_entry_rows=np.zeros(count),
        chunk_actions=np.concatenate([plans] * episodes),
        timing=timing,
        status={"starved_ticks": 0.0, "missed_ticks": 1.0, "chunks": float(count), "chunks_discarded": 2.0},
        tick_errors_s=np.array([[1e-5, 2e-4, 1e-3], [3e-5, 4e-4, 2e-3]]),
        rtc_mode="identity" if mode == "rtc" else mode,
        episodes=tuple(
            Episode(i + 1, span_s * i, span_s * i + DT_S * EPISODE_TICKS, "success" if i == 0 else "timeout")
            for i in range(episodes)
        ),
    )


def _path(ticks: np.ndarray, jump_rad: float) -> np.ndarray:
    yaw = 0.4 * np.sin(np.pi * ticks / EPISODE_TICKS) ** 2 + _offset(ticks, jump_rad)[..., 0]
    return np.stack([yaw, np.full(len(ticks), 0.3)], axis=-1)


def _offset(ticks: np.ndarray | int, jump_rad: float) -> np.ndarray:
    yaw = jump_rad * ((np.asarray(ticks) // PERIOD_TICKS) % 2)
    return np.stack([yaw, np.zeros_like(yaw)], axis=-1)


def empty_record(mode: str = "rtc") -> RunRecord:
    """A run in which nothing was ever heard of the policy."""
    nothing = np.array([])
    return RunRecord(mode, (), float("nan"), nothing, nothing, nothing, nothing, nothing, nothing)
