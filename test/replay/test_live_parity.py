"""Guards against: a replay that decides otherwise than the live node where that missed ticks, saw its inputs late, was
paused, reset, switched or started anew; and a replay that cannot tell that it does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from phyai_core.types import Fault, Reason
from phyai_ros.assembly import load_policy
from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_writer import BagWriter
from phyai_ros.replay.log_findings import find_in_log
from phyai_ros.replay.recorded_run import read_recorded_run
from phyai_ros.replay.replay_run import Replay
from phyai_ros.replay.scenario import Scenario
from phyai_ros.replay.topics import NodeName
from phyai_ros.settings import Limits
from replay.live_rig import LiveRun
from replay.made_bags import MadeBag
from replay.replay_rig import PARAMETERS, knowing_policy

SHORT = [(1.01, 1.17), (2.215, 2.31)]  # s: 3 ticks are missed, and 1
LONG = [(1.013, 1.55)]  # so long that the inputs are stale when the loop goes on
OUTPUTS = {
    "trajectory": {},
    "forward": {"output.type": "forward_command", "output.rate_hz": 100.0},
}


def enable(seconds: float, on: bool, topic: str = "enable"):
    return seconds, f"/policy/{topic}", "std_msgs/msg/Bool", {"data": on}


RUNS = {
    "never late": LiveRun(),
    "short stalls": LiveRun(stalls=SHORT),
    "stale inputs": LiveRun(stalls=LONG, inputs_first=False, parameters={"inputs.max_age_s": 0.1}),
    "slow inference": LiveRun(latency_s=0.3, stalls=SHORT),
    "starving": LiveRun(latency_s=1.2, parameters={"inference.hang_after_s": 5.0}),
    "reset": LiveRun(events=[(1.5, lambda live: live.pipeline.reset(Reason.RESET, "asked for"))]),
    "paused": LiveRun(
        stalls=SHORT,
        events=[(1.5, lambda live: live.pipeline.pause(True)), (1.83, lambda live: live.pipeline.pause(False))],
    ),
    "not the owner": LiveRun(
        events=[
            (1.5, lambda live: live.pipeline.own(Fault(Reason.NOT_OWNER, "another's"))),
            (2.0, lambda live: live.pipeline.own(None)),
        ],
    ),
    "switched": LiveRun(
        MadeBag(more=[enable(0.5, True), enable(1.6, False), enable(1.63, False), enable(2.1, True)]),
        stalls=[(1.58, 1.74), (2.05, 2.25)],
        parameters={"require_enable": True},
    ),
    "emergency stop": LiveRun(
        MadeBag(more=[enable(1.5, True, "estop"), enable(1.8, False, "estop")]),
        stalls=[(1.49, 1.57)],
        events=[(1.9, lambda live: live.pipeline.clear_estop())],
    ),
    "activated twice": LiveRun(
        events=[(1.5, lambda live: live.pipeline.close()), (2.49, lambda live: live.pipeline.begin())],
        again=(2.0, 2.5),
    ),
}


def replay_of(path, parameters) -> tuple:
    """(parity, findings)"""
    policy = load_policy(build_settings({**PARAMETERS, **parameters}), log=lambda line: None)
    with Bag(path) as bag:
        result = Replay(bag, policy, NodeName()).run(Scenario(latency="recorded"))
    return result.parity, find_in_log(result, Limits())


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_replay_commands_what_the_live_node_commanded(tmp_path, run, output):
    live = LiveRun(**{**vars(run), "parameters": {**run.parameters, **output}})
    with knowing_policy(noise=1e-3):
        parity, findings = replay_of(live.record(tmp_path), live.parameters)
    assert parity.exact and parity.both > 20, parity
    assert not [finding for finding in findings if finding.kind == "parity"]


def test_the_stalls_of_these_runs_miss_ticks_and_make_inputs_stale(tmp_path):
    with knowing_policy():
        short, long = RUNS["short stalls"], RUNS["stale inputs"]
        ticks = read_ticks(short.record(tmp_path / "short"))
        stale = [tick.reason for tick in read_ticks(long.record(tmp_path / "long"))]
    assert [after.tick - tick.tick - 1 for tick, after in pairwise(ticks) if after.tick > tick.tick + 1] == [3, 1]
    assert Reason.INPUT_STALE.value in stale


def read_ticks(path):
    with Bag(path) as bag:
        return read_recorded_run(bag, NodeName()).trace


def test_a_recording_that_begins_late_is_repeated_from_the_next_start_on(tmp_path):
    run = RUNS["reset"]
    with knowing_policy(noise=1e-3):
        with Bag(run.record(tmp_path)) as bag, BagWriter(tmp_path / "late.mcap") as writer:
            for message in bag.messages():
                if bag.since_start_s(message.log_ns) > 1.0:
                    writer.write(message.topic, message.type, message.log_ns, message.msg)
        parity, _ = replay_of(tmp_path / "late.mcap", {})
    assert parity.both - parity.equal < 15 and parity.equal > 50


def test_without_the_ticks_a_quiet_run_still_comes_out_the_same(tmp_path):
    with knowing_policy():
        parity, _ = replay_of(LiveRun().record(tmp_path, with_ticks=False), {})
    assert parity.exact and not parity.traced


def test_without_the_ticks_missed_ones_are_told_from_the_commands(tmp_path):
    run = RUNS["short stalls"]
    with knowing_policy():
        parity, _ = replay_of(run.record(tmp_path, with_ticks=False), {})
    assert parity.exact


def test_a_run_that_cannot_be_repeated_says_from_where_on_and_why(tmp_path):
    run = RUNS["stale inputs"]
    with knowing_policy():
        parity, findings = replay_of(run.record(tmp_path, with_ticks=False), run.parameters)
    assert not parity.exact
    (found,) = [finding for finding in findings if finding.kind == "parity"]
    assert found.level == "warning" and "record ~/ticks too" in found.text
    assert found.time_s == pytest.approx(1.04, abs=0.05)


@pytest.mark.parametrize("mode", ["none", "sync", "blend", "ensemble", "instant"])
def test_every_mode_is_repeated(tmp_path, mode):
    parameters = {"rtc.mode": mode, "rtc.execution_horizon": 1 if mode == "ensemble" else 6}
    live = LiveRun(stalls=SHORT, latency_s=0.0 if mode == "instant" else 0.05, parameters=parameters)
    with knowing_policy(noise=1e-3):
        parity, _ = replay_of(live.record(tmp_path), parameters)
    assert parity.exact and parity.both > 40, parity
