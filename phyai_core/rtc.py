"""Real-time chunking (RTC, arXiv 2506.07339) as numpy tables: how a new chunk continues the leftover of the old one.

Modes none, identity, hard, ramp and trained are one affine update per denoise step k and row i,

    x <- a[k, i] x + b[k, i] v + c[k, i] Y[i]

so that the same code, or the same captured graph, serves all of them. Y is the leftover of the running chunk, in
model units, row 0 belonging to the launch tick. A row with a = 1, b = 1/N, c = 0 is plain Euler. Modes fd, fd_lagged
and vjp add gain[k] g to plain Euler, g being the gradient that phyai_core.guidance computes from mask and Y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from phyai_core.rtc_weights import (
    SCHEDULES,
    Float64Array,
    guidance_weights,
    mask_end,
    ramp_strength,
    soft_mask,
)
from phyai_core.types import FloatArray, Leftover, PolicySpec

GRADIENT_MODES = ("fd", "fd_lagged", "vjp")  # they cost more than one forward per denoise step


@dataclass(frozen=True)
class RtcConfig:
    """How a new chunk is tied to the leftover of the running one. Raises ValueError: name, value, what is allowed."""

    mode: str = "identity"  # one of MODES
    schedule: str = "exp"  # one of SCHEDULES
    mask_ext: int | None = None  # rows the soft mask reaches past d; None: full, up to H - s
    max_guidance_weight: float | None = None  # beta; None: the number of denoise steps
    prior_std: float = 1.0  # sigma_d of the guidance weight; 1 is the paper
    ramp_rate: float = 6.0  # mode ramp: how fast rows past d are released
    exclude: tuple[str, ...] = ()  # actions that are sampled as without RTC, e.g. a gripper that opens or closes

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
    start_rows: int  # rows [0, start_rows) start from `prefix` instead of from noise; without denoise steps: end there
    flow_times: FloatArray  # [N, H], k / N, and 1 where a row is already clean
    columns: NDArray[np.bool_]  # [A'] the dims that all of this applies to; the others are sampled as without RTC
    mask: FloatArray  # [H] W, for the gradient modes
    gains: FloatArray  # [N] w_k / N of the gradient modes, 0 for all others
    rows: FloatArray  # [H, A] Y in robot units, where `prefix` has to be computed anew (reanchor.py); else [0, A]


@dataclass
class _Draft:
    """Tables while a mode fills them in, float64, starting from plain Euler."""

    abc: Float64Array
    flow_times: Float64Array
    mask: Float64Array
    gains: Float64Array
    start_rows: int = 0

    @staticmethod
    def euler(horizon: int, steps: int) -> _Draft:
        divisor = max(steps, 1)  # without denoise steps the tables are empty
        abc = np.broadcast_to(np.array([1.0, 1.0 / divisor, 0.0]), (steps, horizon, 3)).copy()
        flow_times = np.repeat(np.arange(steps)[:, None] / divisor, horizon, axis=1)
        return _Draft(abc, flow_times, mask=np.zeros(horizon), gains=np.zeros(steps))


@dataclass(frozen=True)
class _Overlap:
    """The integers that shape one chunk's conditioning, already inside their ranges: 0 <= frozen <= end <= H."""

    horizon: int  # H
    steps: int  # N
    frozen: int  # rows that are executed before the new chunk can enter: d, at most end
    end: int  # first row without conditioning
    clean: int  # mode trained: rows given to the network as they are, d at most the delay it was trained for


def tables_for(config: RtcConfig, spec: PolicySpec, leftover: Leftover | None) -> RtcTables:
    """`build_tables` for one policy: padding and excluded actions stay out, trained rows stay within its training."""
    names = [feature.name for feature in spec.action]
    guided = [name not in config.exclude for name in names] + [False] * (spec.latent_dim - len(names))
    sizes = (spec.action_horizon, spec.num_denoise_steps, spec.latent_dim)
    tables = build_tables(config, *sizes, leftover, np.array(guided), spec.rtc_max_delay)
    if leftover is None or not len(leftover) or config.mode == "none" or not relative_actions(spec):
        return tables
    return replace(tables, rows=_extend_rows(leftover.actions, spec.action_horizon, spec.action_dim))


def relative_actions(spec: PolicySpec) -> list[str]:
    """Names of the actions that are relative to the state at the observation."""
    return [feature.name for feature in spec.action if feature.mode == "relative"]


def build_tables(
    config: RtcConfig,
    horizon: int,
    steps: int,
    latent_dim: int,
    leftover: Leftover | None,
    columns: NDArray[np.bool_] | None = None,
    trained_delay: int = 0,
) -> RtcTables:
    """Tables for one chunk of H = `horizon` rows, N = `steps` denoise steps and A' = `latent_dim` model dims.

    Without a leftover (None or empty) the tables are plain Euler. A delay or execution horizon outside its range
    shrinks the mask and never raises: inference must go on. `columns` [A'] are the dims that may be conditioned (None:
    all); mode trained takes whole rows, with zeros in the other dims, as in training, up to `trained_delay` of them.
    Raises ValueError for a leftover of another width than A'.
    """
    draft = _Draft.euler(horizon, steps)
    columns = np.ones(latent_dim, bool) if columns is None else columns
    prefix = np.zeros((horizon, latent_dim), np.float32)
    if leftover is not None and len(leftover):
        prefix = _extend_rows(leftover.latent, horizon, latent_dim) * columns
        MODES[config.mode](config, _measure(config, horizon, steps, leftover, trained_delay), draft)
    return RtcTables(
        abc=draft.abc.astype(np.float32),
        prefix=prefix.astype(np.float32),
        start_rows=draft.start_rows,
        flow_times=draft.flow_times.astype(np.float32),
        columns=np.ones(latent_dim, bool) if config.mode == "trained" else columns,
        mask=draft.mask.astype(np.float32),
        gains=draft.gains.astype(np.float32),
        rows=np.zeros((0, latent_dim), np.float32),
    )


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} is {value!r}; allowed is {allowed}.")


def _measure(config: RtcConfig, horizon: int, steps: int, leftover: Leftover, trained_delay: int) -> _Overlap:
    valid, delay = min(len(leftover), horizon), max(0, leftover.delay)
    end = mask_end(valid, horizon, leftover.execution_horizon, delay, config.mask_ext)
    return _Overlap(horizon, steps, frozen=min(delay, end), end=end, clean=min(delay, trained_delay, valid))


def _extend_rows(rows: FloatArray, horizon: int, width: int) -> FloatArray:
    """Leftover [V, width] -> [H, width], the last row repeated, rows past H dropped."""
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"leftover has shape {rows.shape}; allowed is [rows, {width}], the dims of the policy.")
    return np.ascontiguousarray(rows[np.minimum(np.arange(horizon), len(rows) - 1)], np.float32)


def _weights(config: RtcConfig, overlap: _Overlap) -> tuple[Float64Array, Float64Array]:
    """Soft mask W [H] and guidance weight per step w / N [N]."""
    beta = float(overlap.steps) if config.max_guidance_weight is None else config.max_guidance_weight
    mask = soft_mask(overlap.horizon, overlap.frozen, overlap.end, config.schedule)
    return mask, guidance_weights(overlap.steps, beta, config.prior_std) / overlap.steps


def _fill_none(config: RtcConfig, overlap: _Overlap, draft: _Draft) -> None:
    """Chunks are swapped as they come."""


def _fill_identity(config: RtcConfig, overlap: _Overlap, draft: _Draft) -> None:
    """v + w W (Y - x - (1 - tau) v): guidance with the Jacobian of the clean estimate taken as the identity."""
    mask, gains = _weights(config, overlap)
    gamma = mask * gains[:, None]  # [N, H]
    draft.abc[..., 0] -= gamma
    draft.abc[..., 1] -= gamma * (1.0 - draft.flow_times)
    draft.abc[..., 2] = gamma


def _fill_gradient(config: RtcConfig, overlap: _Overlap, draft: _Draft) -> None:
    """v + w g, g from phyai_core.guidance."""
    draft.mask, draft.gains = _weights(config, overlap)


def _fill_hard(config: RtcConfig, overlap: _Overlap, draft: _Draft) -> None:
    """Frozen rows follow the straight line from their noise to Y (inpainting); the last step lands on Y exactly.

    A policy without denoise steps has a sampler of its own, which does the same: it only has to know the rows.
    """
    draft.start_rows = 0 if overlap.steps else overlap.frozen
    left = (overlap.steps - np.arange(overlap.steps))[:, None]  # N - k, [N, 1]
    frozen = draft.abc[:, : overlap.frozen]
    frozen[..., 0] = (left - 1) / left
    frozen[..., 1] = 0.0
    frozen[..., 2] = 1.0 / left


def _fill_ramp(config: RtcConfig, overlap: _Overlap, draft: _Draft) -> None:
    """Overlapping rows start from Y and move with a velocity that ramps up past the frozen ones."""
    draft.abc[:, : overlap.end, 1] *= ramp_strength(overlap.end, overlap.frozen, config.ramp_rate)
    draft.start_rows = overlap.end


def _fill_trained(config: RtcConfig, overlap: _Overlap, draft: _Draft) -> None:
    """Frozen rows are clean from the start, at flow time 1, as training-time RTC has taught (arXiv 2512.05964)."""
    draft.abc[:, : overlap.clean] = (0.0, 0.0, 1.0)
    draft.flow_times[:, : overlap.clean] = 1.0
    draft.start_rows = overlap.clean


MODES: dict[str, Callable[[RtcConfig, _Overlap, _Draft], None]] = {
    "none": _fill_none,
    "identity": _fill_identity,
    "fd": _fill_gradient,
    "fd_lagged": _fill_gradient,
    "vjp": _fill_gradient,
    "hard": _fill_hard,
    "ramp": _fill_ramp,
    "trained": _fill_trained,
}
