"""Random latencies, resets, faults and policy failures. Guards against: two chunks in one tick, rows of a dead epoch,
gaps without HOLD or STOP, an entry row that differs from the emitted count, rows out of order.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.executor_rig import OBS, Rig, make_chunk
from phyai_core.types import Action, Fault, Reason

FAULT = Fault(Reason.INPUT_STALE, "stale")
EVENTS = st.sampled_from(["go"] * 12 + ["blind", "fault", "reset", "miss"])


def make_failing_infer(horizon: int, failures: set[int]):
    def infer(request):
        if request.seq in failures:
            raise RuntimeError("boom")
        return make_chunk(request, horizon)

    return infer


def play(rig: Rig, event: str):
    if event == "reset":
        rig.executor.reset(Reason.RESET, "reset")
    missed = 3 if event == "miss" else 0
    return rig.tick(None if event in ("blind", "fault") else OBS, FAULT if event == "fault" else None, missed)


@settings(max_examples=300, deadline=None)
@given(
    horizon=st.integers(1, 12),
    s_min=st.integers(1, 8),
    mode=st.sampled_from(["identity", "none", "sync"]),
    late=st.sampled_from(["consumed", "time"]),
    delays=st.lists(st.integers(0, 20), max_size=40),
    events=st.lists(EVENTS, min_size=5, max_size=80),
    failures=st.sets(st.integers(0, 12), max_size=5),
)
def test_contract_under_random_events(horizon, s_min, mode, late, delays, events, failures):
    infer = make_failing_infer(horizon, failures)
    rig = Rig(
        horizon,
        delays,
        infer,
        mode=mode,
        execution_horizon=s_min,
        late_policy=late,
        hold_limit_s=0.12,
        hang_after_s=0.5,
    )
    emitted_since_launch: dict[int, int] = {}
    previous = None
    for event in events:
        launched_before, left = len(rig.requests), rig.executor.rows_left
        command = play(rig, event)
        count(emitted_since_launch, min(3, left) if event == "miss" else 0)
        check_command(rig, command, previous, 3 if event == "miss" else 0)
        check_entry(command, emitted_since_launch, late)
        if len(rig.requests) > launched_before:
            emitted_since_launch[rig.requests[-1].seq] = 0
        count(emitted_since_launch, command.action is Action.RUN)
        previous = command


def count(emitted_since_launch: dict[int, int], rows: int) -> None:
    for seq in emitted_since_launch:
        emitted_since_launch[seq] += rows


def check_command(rig: Rig, command, previous, missed: int) -> None:
    running = command.action is Action.RUN
    assert (command.row is not None) == running and (command.chunk is not None) == running
    if not running:
        assert command.reason is not Reason.OK and command.text
        return
    assert command.epoch == command.chunk.epoch == rig.executor.epoch
    assert 0 <= command.index < len(command.chunk.actions)
    if previous is not None and previous.action is Action.RUN and not command.adopted:
        assert command.chunk is previous.chunk and command.index == previous.index + 1 + missed
    if previous is not None and command.epoch != previous.epoch:
        assert command.adopted and command.index == 0


def check_entry(command, emitted_since_launch, late) -> None:
    if not command.adopted:
        return
    request = command.adoption.request
    if request.leftover is None and command.index == 0:
        return
    expected = emitted_since_launch[request.seq] if late == "consumed" else command.tick - request.base_tick
    assert command.index == expected
