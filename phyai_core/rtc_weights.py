"""The formulas of real-time chunking (arXiv 2506.07339): where the soft mask ends, its weights, the guidance weight.

Flow time tau runs from 0 (noise) to 1 (action), tau_k = k / N. H is the action horizon, s the execution horizon, d
the inference delay, all in ticks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SCHEDULES = ("exp", "linear", "ones", "zeros")

Float64Array = NDArray[np.float64]


def mask_end(valid: int, horizon: int, execution_horizon: int, delay: int, mask_ext: int | None = None) -> int:
    """First row without conditioning: min(valid, H - s), and d + mask_ext where that is set. Always within [0, H].

    `valid` is the number of leftover rows: the mask never covers a row that does not exist.
    """
    end = min(valid, horizon - execution_horizon)
    if mask_ext is not None:
        end = min(end, delay + mask_ext)
    return max(0, min(end, horizon))


def soft_mask(horizon: int, delay: int, end: int, schedule: str = "exp") -> Float64Array:
    """Weights W [H] over the old chunk (paper, Eq. 5): 1 before d, falling to 0 at `end`. d is clamped to `end`."""
    frozen = max(0, min(delay, end))
    rows = np.arange(horizon)
    ramp = np.clip((end - rows) / (end - frozen + 1), 0.0, 1.0)
    decay = {
        "exp": ramp * np.expm1(ramp) / np.expm1(1.0),
        "linear": ramp,
        "ones": np.ones(horizon),
        "zeros": np.zeros(horizon),
    }[schedule]
    return np.where(rows < frozen, 1.0, np.where(rows < end, decay, 0.0))


def guidance_weights(steps: int, max_guidance_weight: float, prior_std: float = 1.0) -> Float64Array:
    """Guidance weight w [N] at tau_k = k/N: min(beta, (1 - tau) / (tau r^2)), with w(0) = beta.

    r^2 = s^2 (1 - tau)^2 / ((1 - tau)^2 + s^2 tau^2), s = prior_std; s = 1 is the paper.
    """
    tau = np.arange(steps) / steps
    variance = prior_std**2
    with np.errstate(divide="ignore"):
        weight = ((1 - tau) ** 2 + variance * tau**2) / (variance * tau * (1 - tau))
    return np.minimum(max_guidance_weight, weight)


def ramp_strength(end: int, frozen: int, rate: float) -> Float64Array:
    """Velocity strength rho [end] of mode ramp: 0 for frozen rows, then rising towards 1 (GR00T's overlap ramp)."""
    released = end - frozen
    rise = -np.expm1(-rate * np.arange(1, released + 1) / (released + 1)) / -np.expm1(-rate)
    return np.concatenate([np.zeros(frozen), rise])
