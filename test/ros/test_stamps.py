"""Guards against: old data taken for new, stamps of another clock taken for old ones, silence about the reason."""

from __future__ import annotations

import pytest

from phyai_core.types import Reason
from phyai_ros.stamps import StampLimits, judge_stamp

NOW_NS = 1_700_000_000_000_000_000
LIMITS = StampLimits(max_age_s=0.2, future_tolerance_s=0.005)


def judge(age_s: float, now_ns: int = NOW_NS):
    return judge_stamp("camera/front", now_ns - round(age_s * 1e9), now_ns, LIMITS)


@pytest.mark.parametrize("age_s", [0.0, 0.1, 0.2, -0.005])
def test_a_stamp_within_the_limits_is_usable(age_s):
    assert judge(age_s) is None


@pytest.mark.parametrize(
    ("age_s", "reason", "text"),
    [
        (0.201, Reason.INPUT_STALE, "camera/front is 0.201 s old (inputs.max_age_s: 0.2)"),
        (3600, Reason.INPUT_STALE, "camera/front is 3600.000 s old"),
        (3601, Reason.INPUT_CLOCK, "1 h behind this node's clock"),
        (-0.006, Reason.INPUT_CLOCK, "0.006 s in the future (inputs.future_tolerance_s: 0.005)"),
        (-7300, Reason.INPUT_CLOCK, "2 h ahead of this node's clock"),
        (NOW_NS * 1e-9, Reason.INPUT_CLOCK, "without a stamp; stamp it, or set inputs.zero_stamps: arrival"),
    ],
)
def test_any_other_stamp_gets_a_reason_and_a_sentence_with_numbers(age_s, reason, text):
    fault = judge(age_s)
    assert fault.reason is reason
    assert "camera/front" in fault.text and text in fault.text


def test_a_clock_that_has_not_started_is_told_apart_from_old_data():
    fault = judge(0.0, now_ns=0)
    assert fault.reason is Reason.INPUT_CLOCK and "/clock" in fault.text
