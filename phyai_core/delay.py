"""Forecast of the inference delay d, in ticks, from counted delays; and what a chunk can bear of it."""

from __future__ import annotations

import math
from collections import deque


class DelayForecast:
    """A quantile over the last `window` counted delays, so that no delay is remembered longer than `window` chunks.

    Quantile 1 is the largest of the window (the RTC paper): smooth, but slower to react than a smaller quantile.
    A spike, one delay more than `spike_ratio` times the next largest, counts until a smaller one follows it; two of
    the same size are no spike. Count only real overlaps: no warm-up, no first chunk of an epoch.
    """

    def __init__(self, window: int = 10, quantile: float = 1.0, initial: int = 0, spike_ratio: float = 3.0) -> None:
        """`initial` [ticks] stands in the window until real delays push it out. Raises ValueError for bad settings."""
        if window < 1:
            raise ValueError(f"rtc.delay_window is {window}; allowed is an integer >= 1.")
        if not 0.0 < quantile <= 1.0:
            raise ValueError(f"rtc.delay_quantile is {quantile}; allowed is above 0 and up to 1.")
        if initial < 0:
            raise ValueError(f"rtc.delay_initial is {initial}; allowed is an integer >= 0.")
        if not spike_ratio >= 1.0:
            raise ValueError(f"rtc.delay_spike_ratio is {spike_ratio}; allowed is a number >= 1.")
        self._quantile, self._spike_ratio = quantile, spike_ratio
        self._initial = initial
        self._counted: deque[int] = deque(maxlen=window)
        self.reset()

    def reset(self) -> None:
        """Forget every counted delay: the forecast is `initial` again."""
        self._counted.clear()
        self._counted.append(self._initial)

    def push(self, counted: int) -> None:
        """Add the ticks one chunk took from launch to adoption."""
        self._counted.append(counted)

    def forecast(self) -> int:
        """Smallest delay in the window that at least the share `quantile` of the window does not exceed, in ticks."""
        counted = sorted(self._counted)
        if self._ends_in_spike(counted):
            counted.pop()
        # The small term keeps 0.28 * 25 = 7.000000000000001 from asking for an eighth.
        rank = max(1, math.ceil(self._quantile * len(counted) - 1e-9))
        return counted[rank - 1]

    def _ends_in_spike(self, ascending: list[int]) -> bool:
        if len(ascending) < 2 or self._counted[-1] == ascending[-1]:
            return False
        return ascending[-1] > self._spike_ratio * max(1, ascending[-2])


def check_feasible(horizon: int, execution_horizon: int, delay: int) -> str | None:
    """None when d <= s <= H - d, otherwise a sentence with the numbers and a way out.

    Outside this range the running chunk ends before the next one is there (s > H - d), or inference alone already
    takes longer than the s ticks one chunk is meant to be executed for (d > s).
    """
    numbers = (
        f"execution horizon s = {execution_horizon}, action horizon H = {horizon}, inference delay d = {delay} ticks"
    )
    if 2 * delay > horizon:
        return f"No execution horizon fits ({numbers}): d may be at most H / 2 = {horizon // 2}; make inference faster."
    if execution_horizon < delay:
        return f"Inference takes longer than a chunk is executed ({numbers}): raise s to {delay} or more."
    if execution_horizon > horizon - delay:
        return f"The chunk ends before the next one is ready ({numbers}): lower s to H - d = {horizon - delay} or less."
    return None


def explain_degradation(horizon: int, s_min: int, delay: int, trained_delay: int | None = None) -> str | None:
    """None while the configured execution horizon can be kept at this delay forecast, else what is done instead.

    `trained_delay` is the longest delay that a checkpoint of mode trained knows.
    """
    if 2 * delay > horizon:
        return (
            f"inference takes {delay} ticks, more than half of the {horizon} rows of a chunk: "
            "the robot holds whenever a chunk runs out"
        )
    if trained_delay is not None and delay > trained_delay:
        return (
            f"inference takes {delay} ticks, and the policy was trained for at most {trained_delay}: "
            f"rows {trained_delay} to {delay - 1} are not tied to what is executed"
        )
    if delay > s_min:
        return (
            f"inference takes {delay} ticks, more than the execution horizon {s_min}: "
            f"chunks are executed for {delay} rows, and the next one can continue {horizon - delay} of them"
        )
    if s_min > horizon - delay:
        return (
            f"inference takes {delay} ticks, so that {s_min} of {horizon} rows cannot be executed before the next "
            f"launch: chunks are executed for {horizon - delay - 1} rows"
        )
    return None
