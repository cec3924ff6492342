"""Guards against: a stop with more jerk or deceleration than allowed, one that ends moving, a silent lack of ruckig."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from phyai_core.braking import Brake, jerk_limited_tail

DT_S = 0.01
VELOCITY = np.array([1.0, -0.6])


def test_the_stop_keeps_deceleration_and_jerk_and_ends_at_rest():
    positions, velocities = jerk_limited_tail([0.0, 1.0], VELOCITY, [4.0, 4.0], [40.0, 40.0], DT_S)
    speeds = np.vstack([VELOCITY, velocities])
    acceleration = np.diff(speeds, axis=0) / DT_S
    jerk = np.diff(np.vstack([np.zeros(2), acceleration[:-1]]), axis=0) / DT_S
    assert np.abs(acceleration).max() <= 4.0 * 1.001 and np.abs(jerk).max() <= 40.0 * 1.001
    assert np.all(velocities[-1] == 0.0)
    np.testing.assert_allclose(positions[-1], [0.175, 0.895], atol=2e-3)  # v^2 / 2a and what the jerk limit adds
    assert np.all(np.diff(positions[:, 0]) >= 0) and np.all(np.diff(positions[:, 1]) <= 0)


def test_a_brake_uses_it_where_jerk_is_limited():
    soft = Brake(np.full(2, 4.0), DT_S, np.full(2, 40.0)).tail(np.zeros(2), VELOCITY)
    hard = Brake(np.full(2, 4.0), DT_S).tail(np.zeros(2), VELOCITY)
    assert len(soft[0]) > len(hard[0])


def test_without_ruckig_the_limit_is_refused_with_the_fix(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ruckig" else find(name))
    with pytest.raises(ValueError, match="pip install ruckig"):
        Brake(np.ones(1), DT_S, np.ones(1))


def test_what_cannot_be_braked_is_an_error():
    with pytest.raises(ValueError, match="finite"):
        jerk_limited_tail([0.0], [np.nan], [1.0], [1.0], DT_S)
