"""Flow time of pi0 and pi0.5. The models run from time 1 (noise) to 0 (action); ours is 1 minus theirs.

A schedule of N steps visits N times only, so everything that depends on time is a table of N + 1 rows: row j belongs
to our flow time j / N, and row N to clean actions, which training-time RTC gives to rows already committed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def model_times(num_steps: int, accumulate: bool) -> Tensor:
    """The model's times of rows 0 .. N, float32 [N + 1].

    `accumulate` adds -1/N in float32 step by step, as openpi does; lerobot computes 1 - j/N. At the shortest period
    the difference is visible (5e-5 in the actions).
    """
    step = -1.0 / num_steps
    times = np.array([1.0 + row * step for row in range(num_steps + 1)], dtype=np.float32)
    if accumulate:
        for row in range(num_steps):
            times[row + 1] = times[row] + np.float32(step)
    times[num_steps] = 0.0
    return torch.from_numpy(times)


def time_features(times: Tensor, width: int, periods: tuple[float, float]) -> Tensor:
    """times [n] -> [n, width] float64: sines, then cosines, of periods spaced evenly in the logarithm."""
    shortest, longest = periods
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64)
    period = shortest * (longest / shortest) ** fraction
    angle = times.double()[:, None] * (2 * torch.pi / period)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def table_rows(flow_time: Tensor, num_steps: int) -> Tensor:
    """Our flow times, multiples of 1/N -> rows of a table, int64 of the same shape. Without host synchronisation."""
    return (flow_time * num_steps).round().long().clamp(0, num_steps)
