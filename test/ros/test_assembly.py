"""Guards against: a first overlap planned for the wrong delay."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from phyai_ros.assembly import LoadedPolicy, forecast_delay


@pytest.mark.parametrize(
    ("latency_s", "ticks"), [(math.nan, 1), (0.001, 1), (0.04, 1), (0.041, 2), (0.25, 7), (9.0, 16)]
)
def test_first_forecast_comes_from_the_warm_up(latency_s, ticks):
    engine = SimpleNamespace(spec=SimpleNamespace(dt_s=0.04, action_horizon=32))
    assert forecast_delay(LoadedPolicy(engine, None, latency_s)) == ticks
