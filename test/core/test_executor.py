"""Guards against: entry rows off by one, prefixes that slip, replayed or zero rows, results of a dead epoch,
forecasts spoilt by the first chunk, silent starvation, stops that never come, exceptions that reach the control tick.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from core.executor_rig import OBS, Rig, make_chunk
from phyai_core.types import Action, Fault, Reason

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rtc.json").read_text())
STALE = Fault(Reason.INPUT_STALE, "camera front: 0.31 s old, allowed 0.2 s")


def make_golden_rig(case) -> Rig:
    return Rig(
        case["H"],
        case["delays"],
        then=999,
        launch_early=False,
        execution_horizon=case["s_min"],
        delay_window=case["buffer"],
        delay_initial=case["d_init"],
        late_policy=case["late_policy"],
    )


@pytest.mark.parametrize("case", GOLDEN["timeline"], ids=lambda case: f"H{case['H']}-{case['late_policy']}")
def test_timeline_is_the_golden_one(case):
    rig = make_golden_rig(case)
    commands = rig.run(len(case["ticks"]))
    seen = [(c.chunk.seq, c.index) if c.action is Action.RUN else None for c in commands]
    assert seen == [None if t["starved"] else (t["chunk"], t["index"]) for t in case["ticks"]]
    for request, golden in zip(rig.requests, case["inferences"], strict=False):
        left = request.leftover
        assert (request.base_tick, request.delay_forecast) == (golden["launch"], golden["d_est"])
        assert (0 if left is None else len(left)) == golden["prefix_len"]
        assert left is None or left.execution_horizon == golden["s"]


def test_a_chunk_that_would_run_out_launches_before_the_execution_horizon():
    late = Rig(12, [1], then=4, execution_horizon=11, delay_initial=4, launch_early=False)
    early = Rig(12, [1], then=4, execution_horizon=11, delay_initial=4)
    late.run(40)
    early.run(40)
    assert late.executor.counters.starved_ticks > 0
    assert early.executor.counters.starved_ticks == 0


def test_leftover_starts_with_the_row_of_the_launch_tick():
    rig = Rig(16, [2, 3, 3, 3], execution_horizon=5)
    emitted = {c.tick: c.row for c in rig.run(40) if c.row is not None}
    overlapping = [r for r in rig.requests if r.leftover is not None]
    assert len(overlapping) >= 3
    for request in overlapping:
        np.testing.assert_array_equal(request.leftover.actions[0], emitted[request.base_tick])


def test_every_row_runs_in_the_tick_it_was_planned_for():
    rig = Rig(16, [4, 3, 5, 1, 2, 4], execution_horizon=5, delay_initial=5)
    rows = [c for c in rig.run(60) if c.action is Action.RUN]
    late = rows[0].tick - rig.requests[0].base_tick  # the first chunk enters at row 0, whenever it comes
    assert {c.tick - int(c.row[1]) for c in rows if c.chunk.seq > 0} == {0}
    assert {c.tick - int(c.row[1]) for c in rows if c.chunk.seq == 0} == {late}


def test_first_chunk_enters_at_row_zero_and_does_not_spoil_the_forecast():
    rig = Rig(16, [9], execution_horizon=8, delay_initial=2)
    command = rig.run(10)[-1]
    assert (command.index, command.adoption.delay_counted) == (0, 9)
    assert rig.executor.delay_forecast == 2


def test_missed_ticks_of_a_self_advancing_output_count_as_emitted():
    rig = Rig(32, [1, 12], execution_horizon=8)
    rig.run(12)
    stalled = rig.tick(missed=7)
    assert stalled.index == rig.trace[-2].index + 8
    entry = next(c for c in rig.run(20) if c.adopted)
    assert entry.index == entry.tick - rig.requests[1].base_tick


def test_starvation_holds_then_stops_then_runs_a_new_epoch_from_row_zero():
    rig = Rig(8, [1, 30, 1], execution_horizon=4, hold_limit_s=0.12)
    actions = [c.action for c in rig.run(45)]
    first_hold = actions.index(Action.HOLD)
    assert actions[first_hold : first_hold + 4] == [Action.HOLD] * 3 + [Action.STOP]
    assert rig.trace[first_hold].reason is Reason.STARVED
    resumed = next(c for c in rig.trace[first_hold:] if c.action is Action.RUN)
    assert (resumed.index, resumed.epoch) == (0, 1)
    assert rig.executor.counters.chunks_discarded == 1


def test_input_fault_holds_at_once_and_drops_the_plan():
    rig = Rig(32, [1, 1], execution_horizon=8, hold_limit_s=0.12)
    rig.run(5)
    held = [rig.tick(obs=None, fault=STALE) for _ in range(5)]
    assert [c.action for c in held] == [Action.HOLD] * 3 + [Action.STOP] * 2
    assert {(c.reason, c.text) for c in held} == {(STALE.reason, STALE.text)}
    after = rig.run(4)
    assert next(c for c in after if c.action is Action.RUN).index == 0
    assert all(c.epoch > 0 for c in after)


def test_without_observation_the_running_chunk_goes_on_and_nothing_is_launched():
    rig = Rig(12, [1], execution_horizon=4)
    rig.run(3)
    commands = [rig.tick(obs=None) for _ in range(12)]
    assert [c.action for c in commands].count(Action.RUN) == 10
    assert len(rig.requests) == 1
    assert commands[-1].reason is Reason.STARVED


def test_reset_with_an_inference_in_flight_never_executes_its_result():
    rig = Rig(16, [1, 6, 1], execution_horizon=4)
    rig.run(7)
    rig.executor.reset(Reason.RESET, "reset requested")
    commands = rig.run(12)
    assert commands[0].action is Action.STOP
    assert all(c.chunk.seq >= 2 for c in commands if c.chunk)
    assert rig.executor.counters.chunks_discarded == 1


def test_a_new_epoch_keeps_the_forecast_and_a_restart_forgets_it():
    rig = Rig(16, [1], then=5, execution_horizon=6)
    rig.run(20)
    rig.executor.reset(Reason.RESET, "reset requested")
    assert rig.executor.delay_forecast == 5
    rig.executor.restart(Reason.RESET, "the node was activated")
    assert rig.executor.delay_forecast == 1
    assert rig.executor.counters.chunks == 0


def test_nothing_is_launched_while_a_result_of_an_older_epoch_is_still_computed():
    rig = Rig(16, [1, 6, 1], execution_horizon=4)
    rig.run(6)
    assert len(rig.requests) == 2
    rig.executor.reset(Reason.RESET, "reset requested")
    rig.run(4)
    assert len(rig.requests) == 2
    rig.run(3)
    assert len(rig.requests) == 3


@pytest.mark.parametrize("row", [0, 7])
def test_a_chunk_with_nan_is_refused_and_the_old_one_goes_on(row):
    def infer(request):
        chunk = make_chunk(request, 16)
        if request.seq == 1:
            chunk.actions[row, 1] = np.nan
        return chunk

    rig = Rig(16, [1, 2, 2], infer=infer, execution_horizon=4)
    commands = rig.run(12)
    assert all(np.isfinite(c.row).all() for c in commands if c.row is not None)
    assert [c.action for c in commands[1:]] == [Action.RUN] * 11
    assert rig.executor.counters.chunks_rejected == 1


def test_a_policy_that_keeps_raising_ends_in_a_stop_that_says_so():
    def infer(request):
        if request.seq:
            raise RuntimeError("out of memory")
        return make_chunk(request, 8)

    rig = Rig(8, [], infer=infer, execution_horizon=4, hold_limit_s=0.08)
    last = rig.run(20)[-1]
    assert (last.action, last.reason) == (Action.STOP, Reason.POLICY_ERROR)
    assert last.text == "policy raised RuntimeError: out of memory"
    assert rig.executor.counters.policy_errors >= 3


@pytest.mark.parametrize("delay", [1, 3, 6])
@pytest.mark.parametrize("kind", ["raises", "nan", "hangs"])
def test_after_a_policy_fault_braking_begins_before_the_chunk_ends(kind, delay):
    def infer(request):
        if request.seq and kind == "raises":
            raise RuntimeError("boom")
        chunk = make_chunk(request, 32)
        chunk.actions[3:] *= np.nan if request.seq and kind == "nan" else 1.0
        return chunk

    then = 10**6 if kind == "hangs" else delay
    rig = Rig(32, [delay], infer=infer, then=then, execution_horizon=8, delay_initial=delay)
    commands = rig.run(60)
    last = max(c.index for c in commands)
    held = commands[delay + last + 1 :]
    assert 31 - delay - 1 <= last < 31
    assert {c.action for c in held} == {Action.HOLD}
    said = {"raises": Reason.POLICY_ERROR, "nan": Reason.BAD_CHUNK, "hangs": Reason.STARVED}[kind]
    assert {c.reason for c in held[:10]} == {said}


def test_a_policy_that_fails_once_and_recovers_in_time_is_not_felt():
    def infer(request):
        if request.seq == 1:
            raise RuntimeError("once")
        return make_chunk(request, 16)

    rig = Rig(16, [3], infer=infer, then=3, execution_horizon=6, delay_initial=3)
    assert {c.action for c in rig.run(60)[3:]} == {Action.RUN}


def test_a_hung_inference_is_a_fault_with_its_age():
    rig = Rig(8, [1, 100], execution_horizon=4, hang_after_s=0.4)
    reasons = [(c.reason, c.text) for c in rig.run(20)]
    assert (Reason.POLICY_ERROR, "inference has not returned for 0.4 s") in reasons


def test_a_guard_can_refuse_the_first_chunk():
    far = Fault(Reason.START_TOO_FAR, "elbow: 0.8 rad from the first target, allowed 0.3")
    rig = Rig(8, [], guard=lambda chunk, request: far if request.seq < 3 else None)
    commands = rig.run(12)
    assert commands[3].action is Action.NONE and commands[3].text == far.text
    assert commands[-1].action is Action.RUN


def test_a_chunk_that_cannot_be_judged_is_not_executed_and_inference_goes_on():
    def judge(chunk, request):
        if request.seq < 3:
            raise KeyError("elbow")

    rig = Rig(8, [], guard=judge)
    commands = rig.run(12)
    assert (commands[3].action, commands[3].reason) == (Action.NONE, Reason.INTERNAL)
    assert commands[3].text == "the check of the chunk raised KeyError: 'elbow'"
    assert commands[-1].action is Action.RUN


def test_sync_mode_waits_for_each_inference_without_starving():
    rig = Rig(8, [3, 3, 3, 3], mode="sync", execution_horizon=4, hold_limit_s=0.04)
    commands = rig.run(22)
    assert rig.executor.counters.starved_ticks == 0
    assert [c.index for c in commands if c.adopted] == [0, 0, 0]
    assert all(r.leftover is None for r in rig.requests)
    assert {c.reason for c in commands if c.action is Action.HOLD} == {Reason.SYNC_WAIT}


def test_seam_is_the_second_difference_at_the_swap():
    def infer(request):
        chunk = make_chunk(request, 16)
        chunk.actions[:] = 0.25 * request.seq
        return chunk

    rig = Rig(16, [1, 2], infer=infer, execution_horizon=4)
    assert [round(c.adoption.seam, 6) for c in rig.run(8) if c.adopted][1:] == [0.25]


def test_the_inference_thread_wakes_on_launch():
    rig = Rig(8, [])
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(rig.executor.wait_for_request(5.0)))
    thread.start()
    rig.executor.tick(0, 0, OBS)
    thread.join(5.0)
    assert got == [True] and rig.executor.step_inference() and not rig.executor.step_inference()
