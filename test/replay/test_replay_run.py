"""Guards against: replays that differ from run to run, latencies that are not what was asked for, losses and faults
that a what-if does not show, a robot that moves on data the live node would refuse."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from phyai_core.types import Action, Reason
from phyai_ros.replay.figures import describe_result
from phyai_ros.replay.log_findings import find_in_log
from phyai_ros.replay.scenario import Scenario
from phyai_ros.settings import Limits
from replay.made_bags import JOINTS, MadeBag
from replay.replay_rig import DT_S, HORIZON, knowing_policy, replay


def figures(result):
    return describe_result(result, Limits())


def kinds(result) -> set[str]:
    return {finding.kind for finding in find_in_log(result, Limits())}


def test_a_clean_bag_moves_the_robot_from_start_to_end(tmp_path):
    with knowing_policy():
        result = replay(tmp_path, MadeBag())
    runs = [line for line in result.log.ticks if line.row is not None]
    assert len(runs) >= 4.0 / DT_S - 4
    assert result.counters.starved_ticks == result.counters.stops == 0
    assert [chunk.timing.execution_horizon for chunk in result.log.chunks[2:]] == [6] * (len(result.log.chunks) - 2)
    assert kinds(result) == set()
    assert result.comparison.topic == JOINTS and result.comparison.mean_error < 2e-3
    assert result.comparison.open_loop.ratio < 0.1


def test_memory_does_not_grow_with_the_pictures_of_the_bag(tmp_path):
    """100 pictures of half a megabyte, 17 of them shown to the policy; a few are in flight."""
    made = MadeBag(side=400)
    made.write(tmp_path / "bag")
    with knowing_policy():
        tracemalloc.start()
        result = replay(tmp_path, made)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(result.log.chunks) > 14 and peak < 12_000_000


def test_two_replays_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        with knowing_policy():
            result = replay(tmp_path, MadeBag(), Scenario(jitter_s=0.03, drop_camera={"front": 0.3}, seed=5))
        result.log.write(tmp_path / f"{name}.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(("latency_s", "ticks"), [(0.0, 1), (0.039, 1), (0.041, 2), (0.2, 5), (0.39, 10)])
def test_a_latency_is_counted_in_the_ticks_that_it_takes(tmp_path, latency_s, ticks):
    with knowing_policy():
        result = replay(tmp_path, MadeBag(), Scenario(latency=str(latency_s)))
    assert {chunk.timing.delay_counted for chunk in result.log.chunks} == {ticks}
    timing = figures(result)["timing"]
    assert timing["l_inference"]["p50"] == pytest.approx(latency_s, abs=1e-9)
    if latency_s:
        assert timing["x"] == pytest.approx(6 * DT_S / latency_s)


def test_what_if_inference_were_slower_than_the_chunk(tmp_path):
    with knowing_policy():
        result = replay(tmp_path, MadeBag(), Scenario(inject_delay_s=HORIZON * DT_S))
    values = figures(result)
    assert values["starved_ticks"] > 0 and values["holds"] > 0 and values["stops"] > 0
    assert values["timing"]["x"] < 1 and values["timing"]["bound"] == "inference"
    assert any(kind.startswith("hold") for kind in kinds(result))
    text = next(f.text for f in find_in_log(result, Limits()) if f.kind == "hold_starved")
    assert "the chunk ran out before the next one was ready" in text


def test_a_trace_of_latencies_is_taken_in_its_order(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_text("0.03\n0.11\n0.05\n")
    with knowing_policy():
        result = replay(tmp_path, MadeBag(), Scenario(latency_trace=trace))
    seconds = [inference.latency_s for inference in result.inferences]
    assert seconds[:6] == pytest.approx([0.03, 0.11, 0.05] * 2)
    assert [chunk.timing.delay_counted for chunk in result.log.chunks[:3]] == [1, 3, 2]


def test_lost_pictures_make_the_robot_wait_where_too_many_are_lost(tmp_path):
    with knowing_policy():
        result = replay(tmp_path, MadeBag(), Scenario(drop_camera={"front": 1.0}))
    assert "never_ran" in kinds(result)
    assert {line.reason for line in result.log.ticks} >= {Reason.INPUT_MISSING}


def test_a_silent_camera_holds_and_stops_at_the_time_it_falls_silent(tmp_path):
    with knowing_policy():
        result = replay(tmp_path, MadeBag(camera_gap=(1.0, 2.5)))
    found = [f for f in find_in_log(result, Limits()) if f.kind in ("hold_input_stale", "stop_input_stale")]
    assert [f.kind for f in found] == ["hold_input_stale", "stop_input_stale"]
    assert found[0].time_s == pytest.approx(1.24, abs=0.05) and "camera/front/image_raw" in found[0].text
    assert any(line.row is not None and line.stamp_ns > result.log.start_ns + 2.6e9 for line in result.log.ticks)


def test_a_policy_that_raises_is_told_at_its_launch(tmp_path):
    with knowing_policy(fails_at=5):
        result = replay(tmp_path, MadeBag())
    (found,) = [f for f in find_in_log(result, Limits()) if f.kind == "policy_error"]
    assert "out of ideas" in found.text and 0.5 < found.time_s < 2.5
    assert result.counters.policy_errors == 1


def test_a_policy_that_plans_too_fast_is_refused_as_on_the_robot(tmp_path):
    with knowing_policy():
        result = replay(tmp_path, MadeBag(), limits__max_velocity=[0.05], limits__mode="refuse")
    assert result.counters.chunks_rejected > 0 and not any(line.row is not None for line in result.log.ticks)
    assert "never_ran" in kinds(result)


def test_without_its_enable_topic_the_robot_counts_as_enabled(tmp_path):
    with knowing_policy():
        result = replay(tmp_path, MadeBag(), require_enable=True)
    assert any(line.row is not None for line in result.log.ticks)


def test_enable_in_the_bag_decides_when_the_robot_moves(tmp_path):
    switch = [(1.0, "/policy/enable", "std_msgs/msg/Bool", {"data": True})]
    switch += [(2.0, "/policy/enable", "std_msgs/msg/Bool", {"data": False})]
    with knowing_policy():
        result = replay(tmp_path, MadeBag(more=switch), require_enable=True)
    times = np.array([result.log.since_start_s(line.stamp_ns) for line in result.log.ticks if line.row is not None])
    assert 1.0 < times.min() < 1.2 and 1.9 < times.max() <= 2.0
    assert result.log.ticks[-1].action in (Action.STOP, Action.NONE)
