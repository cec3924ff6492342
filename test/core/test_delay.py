"""Guards against: a spike that inflates the forecast for ever, a quantile off by one, an impossible horizon that goes
unnoticed, and a sentence without the numbers one needs to repair it.
"""

from __future__ import annotations

import pytest

from core.golden import GOLDEN
from phyai_core.delay import DelayForecast, check_feasible, explain_degradation


@pytest.mark.parametrize("case", GOLDEN["delay_estimator"])
def test_largest_of_the_window(case):
    forecast = DelayForecast(window=case["b"], quantile=1.0, initial=case["d_init"])
    used = []
    for counted in case["observed"]:
        used.append(forecast.forecast())
        forecast.push(counted)
    assert used == case["used_d"]
    assert forecast.forecast() == case["next_d"]


def test_quantile_is_a_delay_that_was_counted():
    forecast = DelayForecast(window=25, quantile=0.28, initial=1)  # 0.28 * 25 = 7.000000000000001
    for counted in range(1, 26):
        forecast.push(counted)
    assert forecast.forecast() == 7


def test_one_spike_does_not_move_a_high_quantile_but_moves_the_maximum():
    for quantile, expected in ((0.9, 2), (1.0, 40)):
        forecast = DelayForecast(window=10, quantile=quantile, initial=2)
        for counted in [2] * 9 + [40]:
            forecast.push(counted)
        assert forecast.forecast() == expected


def test_reset_returns_to_the_initial_delay():
    forecast = DelayForecast(window=3, initial=2)
    forecast.push(9)
    forecast.reset()
    assert forecast.forecast() == 2


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"window": 0}, "delay_window"),
        ({"quantile": 0.0}, "delay_quantile"),
        ({"initial": -1}, "delay_initial"),
        ({"spike_ratio": 0.5}, "delay_spike_ratio"),
    ],
)
def test_wrong_settings_name_themselves(settings, name):
    with pytest.raises(ValueError, match=rf"rtc\.{name} is .*; allowed is"):
        DelayForecast(**settings)


@pytest.mark.parametrize(("s", "d"), [(8, 0), (8, 8), (24, 8), (16, 16), (32, 0)])
def test_feasible_up_to_both_edges(s, d):
    assert check_feasible(32, s, d) is None


@pytest.mark.parametrize(("s", "d", "fix"), [(8, 9, "raise s to 9"), (25, 8, "= 24 or less"), (16, 17, "= 16;")])
def test_infeasible_says_how_to_repair(s, d, fix):
    sentence = check_feasible(32, s, d)
    assert sentence is not None and fix in sentence
    assert f"s = {s}" in sentence and f"d = {d}" in sentence and "H = 32" in sentence


def test_a_lone_spike_counts_until_the_next_delay_and_a_repeated_one_stays():
    forecast = DelayForecast(window=10, initial=2)
    for counted in (2, 3, 20):
        forecast.push(counted)
    assert forecast.forecast() == 20
    forecast.push(2)
    assert forecast.forecast() == 3
    forecast.push(20)
    forecast.push(2)
    assert forecast.forecast() == 20


def test_an_ordinary_spread_is_no_spike():
    forecast = DelayForecast(window=10, initial=1)
    for counted in (1, 3, 9, 2):
        forecast.push(counted)
    assert forecast.forecast() == 9


@pytest.mark.parametrize(
    ("s_min", "delay", "trained", "words"),
    [
        (8, 8, None, None),
        (8, 13, 12, "trained for at most 12: rows 12 to 12"),
        (8, 9, 12, "executed for 9 rows"),
        (30, 4, None, "30 of 32 rows"),
        (8, 17, 12, "more than half"),
    ],
)
def test_degradation_is_explained_by_its_worst_cause(s_min, delay, trained, words):
    sentence = explain_degradation(32, s_min, delay, trained)
    assert sentence is None if words is None else words in sentence and f"takes {delay} ticks" in sentence
