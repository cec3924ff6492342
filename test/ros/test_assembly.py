"""Guards against: a first overlap planned for the wrong delay, and a robot that starts although it must run dry."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from phyai_ros.assembly import LoadedPolicy, check_latency, forecast_delay
from phyai_ros.settings import Rtc, Settings

ENGINE = SimpleNamespace(spec=SimpleNamespace(dt_s=0.04, action_horizon=32))


@pytest.mark.parametrize(
    ("latency_s", "ticks"), [(math.nan, 1), (0.001, 1), (0.04, 1), (0.041, 2), (0.25, 7), (9.0, 16)]
)
def test_first_forecast_comes_from_the_warm_up(latency_s, ticks):
    assert forecast_delay(LoadedPolicy(ENGINE, None, latency_s)) == ticks


@pytest.mark.parametrize(
    ("latency_s", "horizon", "mode", "fits"),
    [
        (0.95, 8, "identity", True),
        (0.97, 8, "identity", False),
        (0.97, 4, "none", True),
        (9.0, 8, "sync", True),
        (math.nan, 8, "identity", True),
    ],
)
def test_inference_has_to_end_before_the_running_chunk(latency_s, horizon, mode, fits):
    settings = Settings(rtc=Rtc(mode=mode, execution_horizon=horizon))
    policy = LoadedPolicy(ENGINE, settings, latency_s)
    refusal = pytest.raises(ValueError, match=r"takes 0\.970 s .* allowed is 0\.960 s, the 32 - 8 rows of 0\.04 s")
    with nullcontext() if fits else refusal:
        check_latency(policy)
