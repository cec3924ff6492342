"""Guards against: latency booked to the wrong stage, unknown terms counted as zero, L_control across a reset,
an infeasible chunk reported as feasible."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from core.executor_rig import make_spec
from phyai_core.actuation_lag import Lag
from phyai_core.execution import Counters
from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import How
from phyai_core.types import Action, ActionChunk, Adoption, Command, InferenceRequest, Source

MS = 1_000_000
ROS_0 = 1_700_000_000_000_000_000
STAGES = {"decode": 0.001, "preprocess": 0.002, "prefix": 0.010, "denoise": 0.020, "postprocess": 0.003}


def make_command(sources=(), epoch=0, launch_ms=100, delay=3, interval=8, stages=STAGES) -> Command:
    rows = np.zeros((16, 2), np.float32)
    request = InferenceRequest(epoch, 4, 10, launch_ms * MS, None, None, 2)
    chunk = ActionChunk(epoch, 4, 10, ROS_0, rows, rows, 40 * MS, tuple(sources), stages)
    adoption = Adoption(request, (launch_ms + 50) * MS, delay, delay, interval, queue_left=5, seam=0.01)
    return Command(Action.RUN, 13, epoch, row=rows[3], chunk=chunk, index=delay, adoption=adoption)


def close(keeper: Timekeeper, command: Command, published_ms: int = 153):
    return keeper.close(command, Counters(starved_ticks=2), published_ms * MS, ROS_0 + 160 * MS, 0.0004)


def test_every_stage_of_a_fully_stamped_chunk_is_measured():
    source = Source("front", ROS_0, 90 * MS, 9, ROS_0 + 30 * MS, ROS_0 + 22 * MS)
    timing = close(Timekeeper(make_spec(16), 8), make_command([source]))
    terms = {"l_observe": 0.022, "l_transfer": 0.008, "l_queue": 0.010, "l_inference": 0.050, "l_adopt": 0.003}
    terms |= {f"l_{name}": seconds for name, seconds in STAGES.items()} | {"l_other": 0.014}
    for name, seconds in terms.items():
        term = getattr(timing, name)
        assert (term.seconds, term.how) == (pytest.approx(seconds), How.MEASURED), name
    assert (timing.l_actuate.seconds, timing.l_actuate.how) == (pytest.approx(0.003), How.BOUNDED)
    assert timing.l_critical.seconds == pytest.approx(0.093)
    assert timing.l_critical.how is How.BOUNDED
    assert timing.action_age == pytest.approx(0.160)


def test_the_lag_of_the_robot_counts_once_it_is_known():
    keeper = Timekeeper(make_spec(16), 8)
    source = Source("front", ROS_0, 90 * MS, 9, ROS_0 + 30 * MS, ROS_0 + 22 * MS)
    assert "effective" not in close(keeper, make_command([source])).stamps
    keeper.lag.latest = Lag(0.060, 0.5)
    assert close(keeper, make_command([source])).l_effect.how is How.UNKNOWN
    keeper.lag.latest = Lag(0.060, 0.97)
    timing = close(keeper, make_command([source]))
    assert (timing.l_actuate.seconds, timing.l_actuate.how) == (pytest.approx(0.063), How.MEASURED)
    assert timing.l_critical.how is How.MEASURED
    assert timing.stamps["effective"] - timing.stamps["published"] == 60 * MS


def test_every_event_of_the_way_is_stamped_in_ros_time():
    source = Source("front", ROS_0, 90 * MS, 9, ROS_0 + 30 * MS, ROS_0 + 22 * MS)
    stamps = close(Timekeeper(make_spec(16), 8), make_command([source])).stamps
    since_ms = {name: (stamp_ns - ROS_0) // MS for name, stamp_ns in stamps.items()}
    assert since_ms == {"exposed": 0, "arrived": 30, "launched": 40, "ready": 90, "published": 93}


def test_stages_timed_by_another_clock_leave_the_rest_unknown():
    timing = close(Timekeeper(make_spec(16), 8), make_command(stages={"denoise": 0.080}))
    assert timing.l_other.how is How.UNKNOWN


def test_joints_that_follow_behind_are_noticed_while_the_robot_runs():
    keeper = Timekeeper(make_spec(16), 8)
    for k in range(120):
        now_s = k * 0.04
        row, lagging = (np.sin(2.0 * (now_s + ahead_s) + np.arange(2)) for ahead_s in (0.04, -0.05))
        obs = SimpleNamespace(measured=lagging, sources=(Source("joint_states", ROS_0 + k * 40 * MS, 0, k),))
        keeper.note_motion(Command(Action.RUN, k, 0, row=row), ROS_0 + k * 40 * MS, obs)
    assert keeper.lag.update().seconds == pytest.approx(0.05, abs=0.003)
    keeper.note_motion(Command(Action.HOLD, 120, 0), ROS_0 + 121 * 40 * MS, None)
    assert keeper.lag.update().seconds == pytest.approx(0.05, abs=0.003)


def test_the_median_and_the_99th_percentile_of_recent_chunks():
    keeper = Timekeeper(make_spec(16), 8)
    for k in range(10):
        close(keeper, make_command(launch_ms=100 + 320 * k))
    close(keeper, make_command(launch_ms=100 + 320 * 9 + 400, delay=9))
    summary = keeper.recent.summarise()
    assert (summary.l_inference_p50, summary.x_p50) == (pytest.approx(0.05), pytest.approx(6.4))
    assert (summary.y_p50, summary.margin_p50, summary.bound) == (pytest.approx(1.0), pytest.approx(5.4), "environment")
    assert 0.32 < summary.l_control_p99 <= 0.4 and summary.y_p99 < 1.0
    assert math.isnan(summary.l_critical_p50)  # without sources the way is unknown
    assert not summary.feasible  # a delay of 9 does not fit in an execution horizon of 8
    keeper.begin()
    assert math.isnan(keeper.recent.summarise().x_p50) and keeper.recent.summarise().feasible


def test_the_way_to_the_effect_counts_only_with_the_lag_of_the_robot():
    keeper = Timekeeper(make_spec(16), 8)
    command = make_command([Source("front", ROS_0, 90 * MS, 9, ROS_0 + 30 * MS, ROS_0 + 22 * MS)])
    close(keeper, command)
    assert math.isnan(keeper.recent.summarise().l_critical_p50)
    keeper.lag.latest = Lag(0.060, 0.97)
    close(keeper, command)
    summary = keeper.recent.summarise()
    assert summary.l_critical_p50 == summary.l_critical_p99 == pytest.approx(0.153)


def test_without_publish_time_the_way_to_us_is_a_bound():
    source = Source("front", ROS_0, 90 * MS, 9, ROS_0 + 30 * MS)
    timing = close(Timekeeper(make_spec(16), 8), make_command([source]))
    assert (timing.l_observe.seconds, timing.l_observe.how) == (pytest.approx(0.030), How.BOUNDED)
    assert timing.l_critical.seconds == pytest.approx(0.093)


def test_the_oldest_source_counts():
    old = Source("front", ROS_0, 80 * MS, 9, ROS_0 + 30 * MS, ROS_0 + 20 * MS)
    new = Source("joint_states", ROS_0 + 25 * MS, 99 * MS, 10, ROS_0 + 26 * MS, ROS_0 + 26 * MS)
    assert close(Timekeeper(make_spec(16), 8), make_command([new, old])).l_queue.seconds == pytest.approx(0.020)


def test_what_is_not_known_is_nan():
    flat = close(Timekeeper(make_spec(16), 8), make_command(stages={})).flatten()
    for name in ("l_observe", "l_transfer", "l_queue", "l_vision", "l_denoise", "l_control", "l_critical", "y"):
        assert math.isnan(flat[name]), name
    assert flat["l_critical_how"] == 0


def test_control_interval_is_measured_within_an_epoch_only():
    keeper = Timekeeper(make_spec(16), 8)
    launches = [close(keeper, make_command(epoch=e, launch_ms=at)) for e, at in [(0, 100), (0, 420), (1, 900)]]
    assert [t.l_control.seconds for t in launches] == pytest.approx([math.nan, 0.32, math.nan], nan_ok=True)


@pytest.mark.parametrize(("delay", "feasible"), [(8, True), (9, False)])
def test_feasibility_is_that_of_the_counted_delay(delay, feasible):
    assert close(Timekeeper(make_spec(16), 8), make_command(delay=delay, interval=8)).feasible is feasible


def test_largest_tick_error_is_that_since_the_last_chunk():
    keeper = Timekeeper(make_spec(16), 8)
    for error in (0.0001, -0.004, 0.002):
        keeper.note_tick(error)
    assert close(keeper, make_command()).tick_error_max == 0.004
    assert close(keeper, make_command()).tick_error_max == 0.0


def test_bookkeeping_costs_at_most_20_us_a_tick():
    """The median over batches of one adoption and eight ticks: a busy machine delays some of them, never most."""
    keeper, adopting = Timekeeper(make_spec(16), 8), make_command([Source("front", ROS_0, 90 * MS, 9, ROS_0 + 30 * MS)])
    running = Command(Action.RUN, 1, 0, row=np.zeros(2, np.float32))
    obs = SimpleNamespace(measured=np.zeros(2, np.float32), sources=(Source("joint_states", ROS_0, 0, 1),))
    batches_s = []
    for _ in range(200):
        started_s = time.perf_counter()
        close(keeper, adopting)
        for k in range(8):
            keeper.note_tick(1e-4)
            keeper.note_motion(running, ROS_0 + k * 40 * MS, obs)
        batches_s.append((time.perf_counter() - started_s) / 8)
    assert np.median(batches_s) <= 20e-6
