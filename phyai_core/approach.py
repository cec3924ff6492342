"""A slow way to the first action of a policy: from rest to rest, straight in joint space, inside given limits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Peaks of the profile 10 t^3 - 15 t^4 + 6 t^5 over a unit of distance and time.
PEAK_VELOCITY, PEAK_ACCELERATION, PEAK_JERK = 15 / 8, 10 / math.sqrt(3), 60.0


def approach_rows(
    start: Array, target: Array, velocity: Array, acceleration: Array, jerk: Array, dt_s: float
) -> NDArray[np.float32]:
    """Rows [R, A], one per period, the last one at `target` [A]; all joints move all the time, limits are [A].

    Raises ValueError when something is not finite or a limit not positive.
    """
    distance = np.abs(np.asarray(target, float) - start)
    limits = np.array([velocity, acceleration, jerk], float)
    if not (np.isfinite(distance).all() and (limits > 0).all()):
        raise ValueError("an approach needs finite positions and positive limits.")
    times = np.array(
        [
            PEAK_VELOCITY * distance / limits[0],
            np.sqrt(PEAK_ACCELERATION * distance / limits[1]),
            np.cbrt(PEAK_JERK * distance / limits[2]),
        ]
    )
    count = max(1, math.ceil(float(times.max()) / dt_s))
    t = np.arange(1, count + 1)[:, None] / count  # [R, 1]
    share = t**3 * (10.0 + t * (6.0 * t - 15.0))
    return (start + share * (np.asarray(target, float) - start)).astype(np.float32)
