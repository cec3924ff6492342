"""Guards against: a record of the control loop that lacks a tick, invents one, or says that it saw what it did not."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from phyai_core.types import Reason
from phyai_ros.messages import to_trace_message
from phyai_ros.tick_trace import KEPT, TickTrace, TracedTick
from ros.pipeline_rig import PipelineRig


def test_ticks_that_ran_are_told_and_missed_ones_are_not():
    rig = PipelineRig()
    rig.run(3)
    rig.tick(missed=2)
    rig.pipeline.trace.finish()
    assert [tick.tick for tick in rig.pipeline.trace.take()] == [0, 1, 2, 5]
    assert rig.pipeline.trace.take() == []


def test_a_tick_tells_what_it_saw_and_launched():
    rig = PipelineRig()
    rig.run_until_moving()
    rig.wrongs.camera_on = False
    rig.run_until(lambda command: command.reason is Reason.INPUT_STALE)
    rig.tick()
    ticks = rig.pipeline.trace.take()
    first, last = ticks[0], ticks[-1]
    assert (first.launches, first.newer_than_ns, first.late_ns) == (1, -1, 0)
    assert last.reason == "input_stale" and last.launches == 1
    assert last.newest_ns["joint_states"] > last.newest_ns["front"] and last.newest_ns["front"] > first.deadline_ns


def test_a_reset_is_told_by_the_tick_after_it():
    rig = PipelineRig()
    rig.run(3)
    rig.pipeline.reset(Reason.RESET, "asked for")
    reset_ns = rig.now_ns
    rig.run(2)
    assert [tick.newer_than_ns for tick in rig.pipeline.trace.take()] == [-1, -1, -1, reset_ns]


def test_publications_between_ticks_are_counted():
    trace = TickTrace()
    for number in range(2):
        trace.note(TracedTick(number, 0))
        trace.note_sub_tick()
    trace.note_sub_tick()
    trace.finish()
    assert [tick.sub_ticks for tick in trace.take()] == [1, 2]


def test_memory_is_bounded_where_nobody_listens():
    trace = TickTrace()
    for number in range(KEPT + 10):
        trace.note(TracedTick(number, 0))
    assert len(trace.take()) == KEPT


def test_the_message_holds_a_stamp_per_tick_and_input():
    ticks = [TracedTick(7, 10, newest_ns={"a": 1}), TracedTick(9, 90, 5, "ok", 3, 2, {"a": 4, "b": 5}, 1)]
    message = to_trace_message(ticks, 100)
    assert list(message.ticks) == [7, 9] and message.input_names == ["a", "b"]
    assert [stamp.nanosec for stamp in message.input_stamps] == [1, 0, 4, 5]
    assert message.lateness[1] == pytest.approx(5e-9) and list(message.sub_ticks) == [0, 1]
