"""Real-time chunking (RTC, arXiv 2506.07339) as numpy: soft mask, guidance weights and the affine update tables.

Flow time tau runs from 0 (noise) to 1 (action), tau_k = k / N. Every mode is one update per denoise step k and row i,

    x <- a[k, i] x + b[k, i] v + c[k, i] Y[i]

so that the same code, or the same captured graph, serves all of them. Y is the leftover of the running chunk, in
model units, row 0 belonging to the launch tick. A row with a = 1, b = 1/N, c = 0 is plain Euler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import FloatArray, Leftover

SCHEDULES = ("exp", "linear", "ones", "zeros")

Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class RtcConfig:
    """How a new chunk is tied to the leftover of the running one. Raises ValueError: name, value, what is allowed."""

    mode: str = "identity"  # one of MODES
    schedule: str = "exp"  # one of SCHEDULES
    mask_ext: int | None = None  # rows the soft mask reaches past d; None: full, up to H - s
    max_guidance_weight: float | None = None  # beta; None: the number of denoise steps
    prior_std: float = 1.0  # sigma_d of the guidance weight; 1 is the paper
    ramp_rate: float = 6.0  # mode ramp: how fast rows past d are released

    def __post_init__(self) -> None:
        _require(self.mode in MODES, "rtc.mode", self.mode, f"one of {', '.join(MODES)}")
        _require(self.schedule in SCHEDULES, "rtc.schedule", self.schedule, f"one of {', '.join(SCHEDULES)}")
        _require(self.mask_ext is None or self.mask_ext >= 0, "rtc.mask_ext", self.mask_ext, "full or a row count >= 0")
        beta = self.max_guidance_weight
        _require(beta is None or 0 <= beta < np.inf, "rtc.max_guidance_weight", beta, "a finite number >= 0")
        _require(0 < self.prior_std < np.inf, "rtc.prior_std", self.prior_std, "a finite number > 0")
        _require(0 < self.ramp_rate < np.inf, "rtc.ramp_rate", self.ramp_rate, "a finite number > 0")


@dataclass(frozen=True)
class RtcTables:
    """Everything the sampler needs to know about RTC for one chunk. N denoise steps, H rows, A' model action dims.

    `prefix` is Y. Rows past the leftover carry no weight and repeat its last row, never zeros: those are the data mean.
    """

    abc: FloatArray  # [N, H, 3] coefficients a, b, c
    prefix: FloatArray  # [H, A']
    start_rows: int = 0  # rows [0, start_rows) start from `prefix` instead of from noise


@dataclass(frozen=True)
class _Overlap:
    """The integers that shape one chunk's conditioning, already inside their ranges: 0 <= frozen <= end <= H."""

    horizon: int  # H
    steps: int  # N
    frozen: int  # rows that are executed before the new chunk can enter: d, at most end
    end: int  # first row without conditioning


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


def build_tables(config: RtcConfig, horizon: int, steps: int, latent_dim: int, leftover: Leftover | None) -> RtcTables:
    """Tables for one chunk of H = `horizon` rows, N = `steps` denoise steps and A' = `latent_dim` model dims.

    Without a leftover (None or empty) the tables are plain Euler. A delay or execution horizon outside its range
    shrinks the mask and never raises: inference must go on. Raises ValueError for a leftover of another width than A'.
    """
    abc = _euler(horizon, steps)
    if leftover is None or len(leftover) == 0:
        return RtcTables(abc.astype(np.float32), np.zeros((horizon, latent_dim), np.float32))
    prefix = _extend_rows(leftover.latent, horizon, latent_dim)
    valid = min(len(leftover), horizon)
    end = mask_end(valid, horizon, leftover.execution_horizon, leftover.delay, config.mask_ext)
    overlap = _Overlap(horizon, steps, frozen=max(0, min(leftover.delay, end)), end=end)
    start_rows = MODES[config.mode](config, overlap, abc)
    return RtcTables(abc.astype(np.float32), prefix, start_rows)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} is {value!r}; allowed is {allowed}.")


def _euler(horizon: int, steps: int) -> Float64Array:
    """abc [N, H, 3] of plain Euler."""
    return np.broadcast_to(np.array([1.0, 1.0 / steps, 0.0]), (steps, horizon, 3)).copy()


def _extend_rows(latent: FloatArray, horizon: int, latent_dim: int) -> FloatArray:
    """Leftover [V, A'] -> [H, A'], the last row repeated, rows past H dropped."""
    if latent.ndim != 2 or latent.shape[1] != latent_dim:
        raise ValueError(
            f"leftover latent has shape {latent.shape}; allowed is [rows, {latent_dim}], the model's dims."
        )
    rows = np.minimum(np.arange(horizon), len(latent) - 1)
    return np.ascontiguousarray(latent[rows], dtype=np.float32)


# Each mode edits abc [N, H, 3] in place, starting from plain Euler, and returns the rows that start from the prefix.


def _fill_none(config: RtcConfig, overlap: _Overlap, abc: Float64Array) -> int:
    return 0


def _fill_identity(config: RtcConfig, overlap: _Overlap, abc: Float64Array) -> int:
    """v + w W (Y - x - (1 - tau) v): guidance with the Jacobian of the clean estimate taken as the identity."""
    steps = overlap.steps
    beta = float(steps) if config.max_guidance_weight is None else config.max_guidance_weight
    weight = guidance_weights(steps, beta, config.prior_std)[:, None]  # [N, 1]
    remaining = 1.0 - np.arange(steps)[:, None] / steps  # 1 - tau, [N, 1]
    gamma = soft_mask(overlap.horizon, overlap.frozen, overlap.end, config.schedule) * weight / steps  # [N, H]
    abc[..., 0] = 1.0 - gamma
    abc[..., 1] = 1.0 / steps - gamma * remaining
    abc[..., 2] = gamma
    return 0


def _fill_hard(config: RtcConfig, overlap: _Overlap, abc: Float64Array) -> int:
    """Frozen rows follow the straight line from their noise to Y (inpainting); the last step lands on Y exactly."""
    left = (overlap.steps - np.arange(overlap.steps))[:, None]  # N - k, [N, 1]
    frozen = abc[:, : overlap.frozen]
    frozen[..., 0] = (left - 1) / left
    frozen[..., 1] = 0.0
    frozen[..., 2] = 1.0 / left
    return 0


def _fill_ramp(config: RtcConfig, overlap: _Overlap, abc: Float64Array) -> int:
    """Overlapping rows start from Y and move with a velocity that ramps up past the frozen ones."""
    abc[:, : overlap.end, 1] *= ramp_strength(overlap.end, overlap.frozen, config.ramp_rate)
    return overlap.end


MODES: dict[str, Callable[[RtcConfig, _Overlap, Float64Array], int]] = {
    "none": _fill_none,
    "identity": _fill_identity,
    "hard": _fill_hard,
    "ramp": _fill_ramp,
}
