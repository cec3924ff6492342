"""Guards against: a smoothness figure that measures something else than its name says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.golden import GOLDEN
from phyai_core import metrics

CASE = GOLDEN["metrics"]


def test_golden_smoothness():
    assert metrics.jerk_norm_rms(CASE["actions"], CASE["dt"]) == pytest.approx(CASE["jerk_rms"], rel=1e-12)
    assert metrics.max_second_difference(CASE["actions"]) == pytest.approx(CASE["max_abs_second_difference"])


def test_golden_overlap():
    np.testing.assert_allclose(
        metrics.overlap_error(CASE["old_tail"], CASE["new_head"]), CASE["overlap_L2"], atol=1e-11
    )
    step = metrics.step_at_entry(CASE["old_tail"], CASE["new_head"], entry=2)
    assert step == pytest.approx(CASE["seam_at_entry_2"], abs=1e-11)


def test_seam_is_the_worst_joint_and_sees_jumps_and_kinks_but_not_speed():
    assert metrics.seam([0.0, 0.0], [0.1, 0.2], [0.2, 0.4]) == pytest.approx(0.0)
    assert metrics.seam([0.0, 0.0], [0.1, 0.2], [0.2, 0.1]) == pytest.approx(0.3)
    assert metrics.seam([0.0], [0.0], [-0.5]) == pytest.approx(0.5)


def test_seams_of_a_run():
    rows = np.array([[0.0], [0.1], [0.2], [0.5], [0.6]])
    np.testing.assert_allclose(metrics.seams(rows, [0, 1, 2, 3]), [0.0, 0.2], atol=1e-12)


def test_jerk_is_elementwise_so_a_still_joint_halves_the_mean_square():
    rows = np.stack([np.arange(6.0) ** 3, np.zeros(6)], axis=1)  # third difference 6 in joint 0
    assert metrics.jerk(rows[:, :1], 0.5) == pytest.approx(6 / 0.125)
    assert metrics.jerk(rows, 0.5) == pytest.approx(6 / 0.125 / math.sqrt(2))
    assert metrics.jerk_norm_rms(rows, 0.5) == pytest.approx(6 / 0.125)


def test_too_few_rows_are_unknown_not_smooth():
    rows = np.zeros((2, 2))
    assert math.isnan(metrics.jerk(rows, 0.1)) and math.isnan(metrics.max_second_difference(rows))
    assert len(metrics.seams(rows, [1])) == 0
