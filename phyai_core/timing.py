"""Control time of a chunk: its terms with their provenance, the control-time roofline, and rings of samples.

    L_critical = L_observe + L_transfer + L_queue + L_inference + L_actuate
    L_overlap  = max(L_inference, L_env)     L_env = s_min dt     L_control = interval between launches
    X = L_env / L_inference     Y = L_env / L_control     roof: Y = min(1, X), without overlap Y = X / (1 + X)

What is not known is NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class How(IntEnum):
    """How a term was obtained, weakest first; the values are those of msg/ControlTiming."""

    UNKNOWN = 0
    BOUNDED = 1
    MEASURED = 2


@dataclass(frozen=True)
class Term:
    """Seconds, and how they were obtained. A sum is only as good as its weakest term, and NaN if one is unknown."""

    seconds: float = math.nan
    how: How = How.UNKNOWN

    def __post_init__(self) -> None:
        if math.isnan(self.seconds) != (self.how is How.UNKNOWN):
            raise ValueError(f"A term of {self.seconds} s cannot be {self.how.name}: unknown and NaN go together.")

    def __add__(self, other: Term) -> Term:
        return Term(self.seconds + other.seconds, min(self.how, other.how))


UNKNOWN = Term()


def measured(seconds: float | None) -> Term:
    """A measured term; UNKNOWN for None or NaN."""
    return UNKNOWN if seconds is None or math.isnan(seconds) else Term(seconds, How.MEASURED)


def bounded(seconds: float | None) -> Term:
    """A term known only by a bound; UNKNOWN for None or NaN."""
    return UNKNOWN if seconds is None or math.isnan(seconds) else Term(seconds, How.BOUNDED)


@dataclass(frozen=True)
class Roofline:
    """One point of the control-time roofline, seconds. A value that is not positive and finite counts as unknown."""

    l_env: float
    l_inference: float
    l_control: float = math.nan

    @property
    def x(self) -> float:
        return _ratio(self.l_env, self.l_inference)

    @property
    def y(self) -> float:
        """Measured; on the roof when inference is hidden entirely behind execution, or the other way round."""
        return _ratio(self.l_env, self.l_control)

    @property
    def roof(self) -> float:
        """The best Y this X allows: min(1, X)."""
        return min(1.0, self.x) if not math.isnan(self.x) else math.nan

    @property
    def y_without_overlap(self) -> float:
        """Y of a loop that stops while it infers: X / (1 + X)."""
        return self.x / (1.0 + self.x)

    def y_expected(self, overlap: bool) -> float:
        """Y of the curve that a loop with or without overlap should lie on."""
        return self.roof if overlap else self.y_without_overlap

    def is_on_curve(self, overlap: bool, dt_s: float, tolerance: float = 0.05) -> bool:
        """Within `tolerance` of its curve, and a tick: chunks are adopted at ticks only, so up to dt_s are lost."""
        expected = self.y_expected(overlap)
        return abs(self.y - expected) <= (tolerance + dt_s / self.l_control) * expected

    @property
    def l_overlap(self) -> float:
        return math.nan if math.isnan(self.x) else max(self.l_inference, self.l_env)

    @property
    def bound(self) -> str:
        """inference: a faster policy shortens the cycle. environment: it only adds margin."""
        if math.isnan(self.x):
            return "unknown"
        return "environment" if self.x >= 1.0 else "inference"

    @property
    def margin(self) -> float:
        return self.x - 1.0

    @property
    def slack(self) -> float:
        """Seconds left of the executed window once inference is done; negative when it takes longer."""
        return self.l_env - self.l_inference


def roofline_at(l_env: float, l_inference: Ring, l_control: Ring, quantile: float) -> Roofline:
    """The point at a quantile (0.5, 0.99) of measured samples: both latencies as long as that quantile."""
    percent = (100.0 * quantile,)
    return Roofline(l_env, l_inference.percentiles(percent)[0], l_control.percentiles(percent)[0])


@dataclass(frozen=True)
class ChunkTiming:
    """Everything about the time of one chunk except the header of msg/ControlTiming. Seconds, ticks and counts."""

    epoch: int
    seq: int
    l_env: float  # s_min * dt
    l_observe: Term = UNKNOWN
    l_transfer: Term = UNKNOWN
    l_queue: Term = UNKNOWN
    l_inference: Term = UNKNOWN
    l_decode: Term = UNKNOWN
    l_preprocess: Term = UNKNOWN
    l_vision: Term = UNKNOWN
    l_prefix: Term = UNKNOWN
    l_denoise: Term = UNKNOWN
    l_postprocess: Term = UNKNOWN
    l_other: Term = UNKNOWN
    l_adopt: Term = UNKNOWN
    l_effect: Term = UNKNOWN
    l_control: Term = UNKNOWN
    actuation_confidence: float = math.nan
    delay_predicted: int = 0
    delay_counted: int = 0
    execution_horizon: int = 0
    entry_row: int = 0
    queue_left: int = 0
    feasible: bool = True
    seam: float = math.nan
    action_age: float = math.nan
    tick_error: float = math.nan
    tick_error_max: float = math.nan
    missed_ticks: int = 0
    starved_ticks: int = 0
    chunks: int = 0
    chunks_discarded: int = 0
    chunks_rejected: int = 0
    stamps: Mapping[str, int] = field(default_factory=dict)  # ROS time in ns of each event that is known

    @property
    def l_actuate(self) -> Term:
        """Chunk ready to first effect. While the robot's part is unknown, what we see of it bounds it from below."""
        if self.l_effect.how is How.UNKNOWN:
            return bounded(self.l_adopt.seconds)
        return self.l_adopt + self.l_effect

    @property
    def l_critical(self) -> Term:
        return self.l_observe + self.l_transfer + self.l_queue + self.l_inference + self.l_actuate

    @property
    def roofline(self) -> Roofline:
        return Roofline(self.l_env, self.l_inference.seconds, self.l_control.seconds)

    def flatten(self) -> dict[str, float | int | bool | str]:
        """Field name of msg/ControlTiming -> value, for all of them but the header and the stamps."""
        point = self.roofline
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "stamps"}
        values |= {"l_actuate": self.l_actuate, "l_critical": self.l_critical, "l_overlap": point.l_overlap}
        values |= {name: getattr(point, name) for name in ("x", "y", "bound", "margin", "slack")}
        flat = {}
        for name, value in values.items():
            if isinstance(value, Term):
                flat[name], flat[f"{name}_how"] = value.seconds, int(value.how)
            else:
                flat[name] = value
        return flat


class Ring:
    """The last `size` samples. A push stores one number in place: fit for the control thread. Reading sorts a copy."""

    def __init__(self, size: int) -> None:
        self._samples = np.full(size, np.nan)
        self.count = 0  # samples pushed since the start or the last clear

    def __len__(self) -> int:
        return min(self.count, len(self._samples))

    def push(self, sample: float) -> None:
        self._samples[self.count % len(self._samples)] = sample
        self.count += 1

    def clear(self) -> None:
        self.count = 0

    def values(self) -> NDArray[np.float64]:
        """The samples held, oldest first."""
        start = self.count % len(self._samples) if self.count > len(self._samples) else 0
        return np.roll(self._samples, -start)[: len(self)]

    def percentiles(self, percents: tuple[float, ...] = (50.0, 99.0, 100.0)) -> tuple[float, ...]:
        """One value per percentage (100 is the maximum), interpolated; NaN while empty."""
        if len(self) == 0:
            return (math.nan,) * len(percents)
        return tuple(float(value) for value in np.percentile(self._samples[: len(self)], percents))


def _ratio(numerator: float, denominator: float) -> float:
    usable = 0.0 < numerator < math.inf and 0.0 < denominator < math.inf
    return numerator / denominator if usable else math.nan
