"""How smooth and how consistent executed chunks are. Rows are emitted actions [T, A], one per tick, in action units.

Two families, not to be mixed: `seam` and `jerk` are per joint (largest, or RMS over joints and ticks); `step_at_entry`
and `jerk_norm_rms` take the norm over joints first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64Array = NDArray[np.float64]


def seam(before_last: ArrayLike, last: ArrayLike, entry: ArrayLike) -> float:
    """Largest absolute second difference over joints at a swap: two rows [A] emitted before it, and the entry row."""
    difference = np.asarray(entry, float) - 2.0 * np.asarray(last, float) + np.asarray(before_last, float)
    return float(np.abs(difference).max())


def seams(rows: ArrayLike, swaps: Sequence[int]) -> Float64Array:
    """`seam` of each swap; `swaps` are the indices in rows [T, A] of the entry rows, those below 2 are left out."""
    rows = np.asarray(rows, float)
    return np.array([seam(rows[i - 2], rows[i - 1], rows[i]) for i in swaps if i >= 2])


def jerk(rows: ArrayLike, dt_s: float) -> float:
    """RMS over ticks and joints of the third difference / dt^3, units/s^3. NaN below four rows."""
    third = _third_difference(rows, dt_s)
    return float(np.sqrt(np.mean(third**2))) if third.size else float("nan")


def jerk_norm_rms(rows: ArrayLike, dt_s: float) -> float:
    """RMS over ticks of the norm over joints of the third difference / dt^3, units/s^3. NaN below four rows."""
    third = _third_difference(rows, dt_s)
    return float(np.sqrt(np.mean(np.sum(third**2, axis=1)))) if third.size else float("nan")


def max_second_difference(rows: ArrayLike) -> float:
    """Largest absolute second difference anywhere in rows [T, A]. NaN below three rows."""
    second = np.diff(np.asarray(rows, float), n=2, axis=0)
    return float(np.abs(second).max()) if second.size else float("nan")


def overlap_error(old_tail: ArrayLike, new: ArrayLike) -> Float64Array:
    """Distance ||new[i] - old_tail[i]|| per row that both have. `old_tail` starts at the launch tick, as `new` does."""
    old_tail, new = np.asarray(old_tail, float), np.asarray(new, float)
    rows = min(len(old_tail), len(new))
    return np.linalg.norm(new[:rows] - old_tail[:rows], axis=1)


def step_at_entry(old_tail: ArrayLike, new: ArrayLike, entry: int) -> float:
    """Step length ||new[entry] - old_tail[entry - 1]|| from the last row executed of the old chunk; entry >= 1."""
    return float(np.linalg.norm(np.asarray(new, float)[entry] - np.asarray(old_tail, float)[entry - 1]))


def _third_difference(rows: ArrayLike, dt_s: float) -> Float64Array:
    return np.diff(np.asarray(rows, float), n=3, axis=0) / dt_s**3
