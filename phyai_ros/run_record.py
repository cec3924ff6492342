"""What was seen of one run of the policy node from outside: the columns that summaries and plots are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
UP_TO_THE_MOTION = ("l_actuate", "l_critical")  # sums that end with l_effect, the robot's lag
MAX_GAP_TICKS = 1.5  # rows further apart than this do not follow each other


@dataclass(frozen=True)
class Episode:
    """One attempt at the task. Times in seconds since the start of the record.

    `real_time_factor` is simulated over real time; below 1 the machine was too slow for the simulator.
    """

    number: int
    start_s: float
    end_s: float
    outcome: str
    real_time_factor: float = 1.0


@dataclass(frozen=True)
class RunRecord:
    """T ticks with a row, C adopted chunks, W windows. Times in seconds since the start of the record.

    `timing` holds the numeric fields of ControlTiming, a column [C] each, NaN where unknown; `status` those of the last
    PolicyStatus; `tick_errors_s` [W, 3] the p50, p99 and maximum over windows of the control loop that do not overlap.
    """

    mode: str
    joint_names: tuple[str, ...]
    dt_s: float
    command_times_s: Column  # [T]
    command_rows: Column  # [T, A]
    chunk_times_s: Column  # [C] adoption
    chunk_epochs: Column  # [C]
    chunk_entry_rows: Column  # [C]
    chunk_actions: Column  # [C, H, A]
    timing: dict[str, Column] = field(default_factory=dict)
    status: dict[str, float] = field(default_factory=dict)
    tick_errors_s: Column = field(default_factory=lambda: np.empty((0, 3)))
    rtc_mode: str = ""
    episodes: tuple[Episode, ...] = ()

    def segments(self) -> list[NDArray[np.intp]]:
        """Indices of rows that follow each other without a gap or a new epoch, one array per stretch."""
        if len(self.command_times_s) == 0:
            return []
        gaps = np.diff(self.command_times_s) > MAX_GAP_TICKS * self.dt_s
        fresh = self._epoch_of_rows()
        breaks = np.flatnonzero(gaps | (np.diff(fresh) != 0)) + 1
        return np.split(np.arange(len(self.command_times_s)), breaks)

    def rows_within(self, episode: Episode) -> NDArray[np.intp]:
        """Indices of the rows commanded in `episode`."""
        times = self.command_times_s
        return np.flatnonzero((times >= episode.start_s) & (times <= episode.end_s))

    def _epoch_of_rows(self) -> Column:
        if len(self.chunk_times_s) == 0:
            return np.zeros(len(self.command_times_s))
        half_tick_s = 0.5 * self.dt_s  # a chunk carries the stamp of the tick whose row it gave first
        chunk = np.searchsorted(self.chunk_times_s, self.command_times_s + half_tick_s) - 1
        return self.chunk_epochs[np.maximum(chunk, 0)]


def known_values(timing: Mapping[str, Column], name: str) -> Column:
    """The values of a field of ControlTiming in the chunks where it is known.

    Sums up to the robot's motion count only where its lag was measured: the others lack it, and would mix two things.
    """
    needed = (name, "l_effect") if name in UP_TO_THE_MOTION else (name,)
    if not timing.keys() >= set(needed):
        return np.empty(0)
    return timing[name][np.isfinite([timing[part] for part in needed]).all(axis=0)]


def save_record(record: RunRecord, path: Path) -> None:
    """Write `record` as one .npz file."""
    meta = {
        "mode": record.mode,
        "rtc_mode": record.rtc_mode,
        "joint_names": record.joint_names,
        "dt_s": record.dt_s,
        "status": record.status,
        "episodes": [vars(episode) for episode in record.episodes],
    }
    columns = {name: getattr(record, name) for name in _COLUMNS}
    timing = {f"timing.{name}": column for name, column in record.timing.items()}
    np.savez_compressed(path, meta=np.array(json.dumps(meta)), **columns, **timing)


def load_record(path: Path) -> RunRecord:
    """Read what `save_record` wrote. Raises ValueError naming the file when it is something else."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            meta = json.loads(str(kept["meta"]))
            columns = {name: kept[name] for name in _COLUMNS}
            timing = {name.removeprefix("timing."): kept[name] for name in kept.files if name.startswith("timing.")}
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not a run recorded by phyai-ros demo ({error}); delete it or name another folder."
        ) from error
    episodes = tuple(Episode(**episode) for episode in meta.pop("episodes"))
    names = tuple(meta.pop("joint_names"))
    return RunRecord(joint_names=names, episodes=episodes, timing=timing, **meta, **columns)


_COLUMNS = (
    "command_times_s",
    "command_rows",
    "chunk_times_s",
    "chunk_epochs",
    "chunk_entry_rows",
    "chunk_actions",
    "tick_errors_s",
)
