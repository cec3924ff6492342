"""Guards against: the paper's index convention off by one, a delay of 0 that is a delay of 1, an executor that degrades
without a word, and late chunks nobody counts.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.executor_rig import Rig
from phyai_core.types import Action


@pytest.mark.parametrize("late_policy", ["consumed", "time"])
def test_with_the_papers_indices_every_row_still_runs_in_its_tick(late_policy):
    """Row 0 stands for the tick after the observation, so prefix and base move on by one and the delay is one less."""
    rig = Rig(16, [4, 3, 5, 2, 2, 4], then=2, execution_horizon=5, obs_index_offset=1, late_policy=late_policy)
    rows = [command for command in rig.run(60) if command.action is Action.RUN]
    emitted = {command.tick: command.row for command in rows}
    assert {command.tick - int(command.row[1]) for command in rows if command.chunk.seq > 0} == {0}
    overlapping = [request for request in rig.requests if request.leftover is not None]
    assert len(overlapping) > 5
    for request in overlapping:
        np.testing.assert_array_equal(request.leftover.actions[0], emitted[request.base_tick])
        assert request.leftover.execution_horizon == 16 - len(request.leftover)
    delays = [command.adoption.delay_counted for command in rows if command.adopted and command.chunk.seq > 0]
    assert delays[:5] == [2, 4, 1, 1, 3]


def test_instant_inference_enters_at_row_zero_in_the_tick_of_its_observation():
    rig = Rig(16, [], execution_horizon=5, instant=True, delay_initial=0)
    commands = rig.run(23)
    assert [command.tick for command in commands if command.adopted] == [0, 5, 10, 15, 20]
    assert {command.index for command in commands if command.adopted} == {0}
    assert {command.tick - int(command.row[1]) for command in commands} == {0}
    assert rig.executor.delay_forecast == 0 and rig.executor.counters.starved_ticks == 0
    assert [len(request.leftover) for request in rig.requests[1:]] == [11] * 4


@pytest.mark.parametrize(
    ("delay", "s_min", "words"),
    [
        (4, 8, None),
        (10, 8, "executed for 10 rows, and the next one can continue 22"),
        (10, 24, "24 of 32 rows cannot be executed before the next launch: chunks are executed for 21 rows"),
        (18, 8, "more than half of the 32 rows of a chunk: the robot holds"),
    ],
)
def test_what_a_delay_forces_is_done_and_said(delay, s_min, words):
    rig = Rig(32, [1], then=delay, execution_horizon=s_min, delay_initial=delay)
    commands = rig.run(150)
    text = rig.executor.degradation
    assert (text is None) if words is None else (words in text)
    launches = np.diff([request.base_tick for request in rig.requests[3:]])
    expected = {4: 8, 10: 10 if s_min == 8 else 21, 18: 18}[delay]
    assert set(launches) == {expected}
    held = [command for command in commands if command.action is Action.HOLD]
    assert bool(held) == (2 * delay > 32)


def test_a_delay_beyond_the_training_is_said():
    rig = Rig(32, [1], then=6, execution_horizon=8, mode="trained")
    rig.run(40)
    assert "trained for at most 0: rows 0 to 5 are not tied" in rig.executor.degradation


def test_waiting_for_inference_is_never_a_degradation():
    rig = Rig(8, [1], then=7, execution_horizon=4, mode="sync", delay_initial=7)
    rig.run(30)
    assert rig.executor.degradation is None


def test_chunks_that_come_later_than_forecast_are_counted():
    rig = Rig(32, [1, 3, 3, 5, 3], then=3, execution_horizon=8, delay_initial=3)
    rig.run(80)
    assert rig.executor.counters.chunks_late == 1
