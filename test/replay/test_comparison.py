"""Guards against: errors, lags and partings that are not those of the data; requirements that let a bad run pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phyai_core.types import Action, Reason
from phyai_ros.replay.action_log import ActionLog, TickLine
from phyai_ros.replay.comparison import compare
from phyai_ros.replay.reference import ReferenceTopic, Track
from phyai_ros.replay.requirements import Outcome, judge, parse_requirement
from replay.made_bags import JOINTS, MadeBag
from replay.replay_rig import knowing_policy, replay

DT_S, TICKS = 0.04, 200
NAMES = ("yaw", "gripper")


def path(t: np.ndarray) -> np.ndarray:
    """A joint that sways, and a gripper that closes at 3 s and opens at 5.5 s."""
    closed = (t > 3.0) & (t < 5.5)
    return np.stack([np.sin(1.3 * t) + 0.3 * np.sin(3.1 * t), np.where(closed, 0.0, 1.0)], axis=-1)


def make_log(rows: np.ndarray) -> ActionLog:
    log = ActionLog(NAMES, ("rad", ""), DT_S, start_ns=0)
    for tick, row in enumerate(rows):
        line = (tick, round(tick * DT_S * 1e9), Action.RUN, Reason.OK, "", 1, 0, tick, row.astype(np.float32))
        log.ticks.append(TickLine(*line))
    return log


def make_track(times_s: np.ndarray) -> Track:
    return Track(ReferenceTopic("/joint_states", 0.0), np.round(times_s * 1e9).astype(np.int64), path(times_s))


TIMES = DT_S * np.arange(TICKS)


def test_the_same_is_the_same():
    found = compare(make_log(path(TIMES)), make_track(TIMES))
    assert found.ticks == TICKS and found.mean_error == pytest.approx(0, abs=1e-6)
    assert math.isnan(found.first_parting_s) and found.gripper_unmatched == 0
    assert found.joints[0].lag_s == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("lag_s", [0.2, 0.1, -0.16])
def test_a_replay_that_comes_later_has_that_lag(lag_s):
    found = compare(make_log(path(TIMES - lag_s)), make_track(TIMES))
    assert found.joints[0].lag_s == pytest.approx(lag_s, abs=0.01)


def test_gripper_events_are_matched_with_their_offset():
    rows = path(TIMES)
    rows[:, 1] = path(TIMES - 0.2)[:, 1]
    events = compare(make_log(rows), make_track(TIMES)).gripper
    assert [(event.closes, round(event.offset_s, 3)) for event in events] == [(True, 0.2), (False, 0.2)]
    rows[:, 1] = 1.0
    assert compare(make_log(rows), make_track(TIMES)).gripper_unmatched == 2


def test_the_first_parting_is_where_a_joint_stays_away():
    rows = path(TIMES)
    rows[50, 0] += 3.0  # one wild tick is no parting
    rows[120:, 0] += 1.0
    found = compare(make_log(rows), make_track(TIMES))
    assert found.first_parting_s == pytest.approx(120 * DT_S) and found.parting_joint == "yaw"


def test_nothing_is_compared_over_gaps_of_the_recording():
    times = np.concatenate([TIMES[:60], TIMES[150:]])
    found = compare(make_log(path(TIMES)), make_track(times))
    assert found.ticks == 60 + 50 and found.mean_error == pytest.approx(0, abs=1e-6)


def test_chunks_of_a_policy_that_is_off_are_off_by_that(tmp_path):
    with knowing_policy(off=0.05):
        result = replay(tmp_path, MadeBag())
    assert result.comparison.mean_error == pytest.approx(0.05, abs=2e-3)
    assert result.comparison.open_loop.error == pytest.approx(0.05, abs=2e-3)
    assert len(result.comparison.open_loop.by_row) == 24


def test_a_late_policy_has_its_lag(tmp_path):
    with knowing_policy(late_s=0.2):
        result = replay(tmp_path, MadeBag(seconds=8.0))
    assert result.comparison.topic == JOINTS
    assert result.comparison.joints[0].lag_s == pytest.approx(0.2, abs=0.05)


FIGURES = {"stops": 0.0, "comparison.mean_error": 0.02, "comparison.open_loop.ratio": 0.8, "timing.x": math.nan}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("stops<=0", True),
        ("stops < 0", False),
        ("mean_error<0.05", True),
        ("open_loop.ratio<0.5", False),
        ("comparison.open_loop.ratio==0.8", True),
        ("x>1", False),  # not known is not met
    ],
)
def test_requirements(text, met):
    (outcome,) = judge([parse_requirement(text)], FIGURES)
    assert isinstance(outcome, Outcome) and outcome.met is met
    assert ("as" if met else "not") in str(outcome) or "not known" in str(outcome)


def test_wrong_requirements_say_what_is_right():
    with pytest.raises(ValueError, match=r"--require is 'stops'; allowed is a figure"):
        parse_requirement("stops")
    with pytest.raises(ValueError, match=r"names stopps, which this replay does not have; near to it are stops"):
        judge([parse_requirement("stopps<1")], FIGURES)
