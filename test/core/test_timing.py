"""Guards against: an unknown term counted as zero, a sum that claims more than its weakest term, a roofline point on
the wrong side, message fields that drift away from the record, and rings that mix old and new samples.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from core.golden import GOLDEN
from phyai_core.timing import UNKNOWN, ChunkTiming, How, Ring, Roofline, Term, bounded, measured, roofline_at

MESSAGE = Path(__file__).parents[2] / "msg" / "ControlTiming.msg"
EVENTS = ("exposed", "arrived", "launched", "ready", "published", "effective")


def test_a_sum_is_as_good_as_its_weakest_term():
    assert measured(0.5) + measured(0.25) == Term(0.75, How.MEASURED)
    assert measured(0.5) + bounded(0.25) == Term(0.75, How.BOUNDED)
    total = measured(0.5) + UNKNOWN + bounded(0.25)
    assert math.isnan(total.seconds) and total.how is How.UNKNOWN


def test_missing_values_become_unknown_and_unknown_is_never_a_number():
    assert measured(None) == measured(math.nan) == bounded(None) == UNKNOWN
    for seconds, how in ((0.0, How.UNKNOWN), (math.nan, How.MEASURED)):
        with pytest.raises(ValueError, match="unknown and NaN go together"):
            Term(seconds, how)


@pytest.mark.parametrize("case", GOLDEN["metrics"]["roofline"])
def test_golden_roofline(case):
    point = Roofline(case["L_env"], case["L_inference"], l_control=case["L_overlap"])
    assert point.x == pytest.approx(case["X"], abs=1e-11)
    assert point.l_overlap == pytest.approx(case["L_overlap"])
    assert point.y == pytest.approx(case["Y_overlap"], abs=1e-11) == point.roof
    assert point.y_without_overlap == pytest.approx(case["Y_sync"], abs=1e-11)
    assert Roofline(case["L_env"], case["L_inference"], case["L_sync"]).y == pytest.approx(case["Y_sync"], abs=1e-11)


def test_bound_margin_and_slack_change_sign_together():
    slow, even, fast = (Roofline(0.32, l_inference) for l_inference in (0.64, 0.32, 0.16))
    assert (slow.bound, even.bound, fast.bound) == ("inference", "environment", "environment")
    assert (slow.margin, even.margin, fast.margin) == (-0.5, 0.0, 1.0)
    assert (slow.slack, even.slack, fast.slack) == pytest.approx((-0.32, 0.0, 0.16))


@pytest.mark.parametrize("l_inference", [math.nan, 0.0, -1.0, math.inf])
def test_an_unknown_latency_gives_an_unknown_point(l_inference):
    point = Roofline(0.32, l_inference, 0.32)
    assert point.bound == "unknown"
    assert all(math.isnan(value) for value in (point.x, point.margin, point.roof, point.l_overlap))


def test_the_tail_of_the_latency_can_be_on_the_other_side():
    inference, control = Ring(100), Ring(100)
    for index in range(100):
        inference.push(0.5 if index >= 95 else 0.1)
        control.push(0.32)
    assert roofline_at(0.32, inference, control, 0.5).bound == "environment"
    assert roofline_at(0.32, inference, control, 0.99).bound == "inference"


def test_flat_record_has_exactly_the_fields_of_the_message():
    declared = re.findall(r"^\w[\w/]*\s+([a-z]\w*)(?=\s|$)", MESSAGE.read_text(), re.MULTILINE)
    assert set(ChunkTiming(epoch=1, seq=2, l_env=0.32).flatten()) == set(declared) - {"header", *EVENTS}


def test_flat_record_of_a_chunk():
    timing = ChunkTiming(
        epoch=1,
        seq=2,
        l_env=0.32,
        l_observe=bounded(0.01),
        l_transfer=measured(0.002),
        l_queue=measured(0.008),
        l_inference=measured(0.16),
        l_adopt=measured(0.02),
        l_control=measured(0.32),
    )
    flat = timing.flatten()
    assert flat["l_critical"] == pytest.approx(0.2) and flat["l_critical_how"] == How.BOUNDED
    assert (flat["x"], flat["y"], flat["bound"]) == (2.0, 1.0, "environment")
    assert math.isnan(flat["l_vision"]) and flat["l_vision_how"] == How.UNKNOWN


def test_ring_keeps_the_newest_in_order():
    ring = Ring(4)
    assert all(math.isnan(value) for value in ring.percentiles())
    for sample in (9.0, 2.0, 3.0, 4.0, 5.0):
        ring.push(sample)
    np.testing.assert_array_equal(ring.values(), [2.0, 3.0, 4.0, 5.0])
    assert len(ring) == 4 and ring.count == 5
    assert ring.percentiles((0.0, 50.0, 100.0)) == (2.0, 3.5, 5.0)
    ring.clear()
    ring.push(7.0)
    assert ring.percentiles((50.0, 100.0)) == (7.0, 7.0) and ring.values().tolist() == [7.0]
