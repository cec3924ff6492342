"""One fault at a time while the arm moves: what the node says, when it begins to brake, when the arm rests.

Guards against: a fault that is not noticed, noticed late, called something else, or that leaves the arm moving. The
table docs/fault_matrix.md is written by this test; on a logical clock it comes out the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from phyai_core.types import Action, Reason
from ros.output_rig import CYCLE_NS
from ros.pipeline_rig import DT_S, HORIZON, PipelineRig, slow_plan

PAGE = Path(__file__).parents[2] / "docs" / "fault_matrix.md"
WITHIN_S = 0.2  # input faults and stop requests: held or braking so soon after they can be seen
MAX_AGE_S = 0.2  # inputs.max_age_s: a silent topic can be seen after this
HEAD = """\
# Faults and what follows

Written by `test/ros/test_fault_matrix.py`: each fault is made while a simulated arm moves at 0.1 rad/s, at 25 Hz, with
an inference delay of three ticks, through the node's own pipeline and a model of joint_trajectory_controller. Times are
seconds after the fault: until the node commands something else than the next action, and until the controller's
reference stands still. A silent or stale topic can be seen only after `inputs.max_age_s` (here {age:g} s). A policy
fault is known at once and need not be felt: the running chunk goes on while another inference could still replace it.
Once none can come in time, braking begins, before the last row.

| fault | state | reason | seen after, s | at rest after, s |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Case:
    """`make(rig)` does it; `reason` None: the node goes on. `seen_s`: latest time of the reaction."""

    make: Callable[[PipelineRig], None]
    reason: Reason | None
    seen_s: float = WITHIN_S


def wrong(**changes) -> Callable[[PipelineRig], None]:
    return lambda rig: [setattr(rig.wrongs, name, value) for name, value in changes.items()] and None


def policy(**behaviour) -> Callable[[PipelineRig], None]:
    def plan(request):
        if "error" in behaviour:
            raise behaviour["error"]
        rows = slow_plan(request)
        rows[5:, 0] += behaviour.get("offset", 0.0)
        return rows

    return lambda rig: setattr(rig, "plan", plan)


def hang(rig: PipelineRig) -> None:
    rig.delay = 10**6


def out_of_memory() -> Exception:
    import torch

    return torch.OutOfMemoryError("CUDA out of memory")


STALE = WITHIN_S + MAX_AGE_S
CHUNK_S = HORIZON * DT_S  # SIGKILL of the node: the chunk that runs is used up, then its tail brakes
BEFORE_END_S = (HORIZON - 1 - 3) * DT_S - 2 * DT_S  # policy faults: braking while rows are left (delay of 3 ticks)
CASES = {
    "camera: no more frames": Case(wrong(camera_on=False), Reason.INPUT_STALE, STALE),
    "camera: frames with an old stamp": Case(wrong(camera_frozen=True), Reason.INPUT_FROZEN, STALE),
    "camera: unknown encoding": Case(wrong(encoding="yuv444"), Reason.INPUT_INVALID),
    "camera: frames of 8 megapixels": Case(wrong(size=2829), None),
    "joints: no more messages": Case(wrong(joints_on=False), Reason.INPUT_STALE, STALE),
    "joints: one is missing": Case(wrong(joint_names=("a",)), Reason.INPUT_MISSING, STALE),
    "joints: NaN": Case(wrong(nan=True), Reason.INPUT_INVALID),
    "joints: other order": Case(wrong(joint_names=("b", "a")), None),
    "stamps: 10 s behind": Case(wrong(stamp_shift_ns=-(10**10)), Reason.INPUT_STALE),
    "stamps: 10 s ahead": Case(wrong(stamp_shift_ns=10**10), Reason.INPUT_CLOCK),
    "clock: jump by 10 s": Case(lambda rig: jump(rig), Reason.FIRST_CHUNK),
    "policy: NaN in a chunk": Case(policy(offset=np.nan), Reason.BAD_CHUNK, BEFORE_END_S),
    "policy: a jump of 5 rad in a chunk": Case(policy(offset=5.0), Reason.BAD_CHUNK, BEFORE_END_S),
    "policy: raises": Case(policy(error=RuntimeError("boom")), Reason.POLICY_ERROR, BEFORE_END_S),
    "policy: out of memory": Case(policy(error=out_of_memory()), Reason.POLICY_ERROR, BEFORE_END_S),
    "policy: hangs": Case(hang, Reason.STARVED, BEFORE_END_S),
    "arm: does not follow": Case(wrong(stuck=True), Reason.FOLLOWING_ERROR, 3.0),
    "e-stop": Case(lambda rig: rig.pipeline.press_estop(True), Reason.ESTOP),
    "e-stop with an inference in flight": Case(lambda rig: estop_in_flight(rig), Reason.ESTOP),
    "~/enable goes false": Case(lambda rig: rig.pipeline.enable(False), Reason.DISABLED),
    "~/pause": Case(lambda rig: rig.pipeline.pause(True), Reason.PAUSED),
    "SIGINT, SIGTERM, deactivate": Case(lambda rig: rig.pipeline.close(), Reason.INACTIVE),
    "SIGKILL of the node": Case(lambda rig: None, None),
}


def jump(rig: PipelineRig) -> None:
    """As the session does when /clock is set: a new epoch, planned anew."""
    rig.mailbox.clear()
    rig.pipeline.reset(Reason.CLOCK_JUMP, "/clock jumped by 10.00 s")
    rig.wrongs.stamp_shift_ns = 1  # and the inputs are those of the new time


def estop_in_flight(rig: PipelineRig) -> None:
    while not rig.executor.busy:
        rig.tick()
    rig.pipeline.press_estop(True)


def run_case(name: str, case: Case) -> dict[str, str | float]:
    rig = PipelineRig(require_enable=True, tracking__max_error=[0.05], tracking__time_s=0.2)
    rig.pipeline.enable(True)
    rig.run_until_moving()
    rig.run(12)
    case.make(rig)
    started, cycles = rig.k, len(rig.robot.speeds)
    if name.startswith("SIGKILL"):
        rest_tick = rig.output.rest_tick
        for _ in range(rest_tick - rig.k + 8):
            rig._pass_period()
        reaction, state = None, "gone"
    else:
        reaction = find_reaction(rig)
        state = describe(rig)
    rest_s = measure_rest(rig, cycles)
    assert rig.robot.rejections == []
    seen_s = float("nan") if reaction is None else (reaction - started) * DT_S
    reason = "" if reaction is None else next(c.reason.value for c in rig.commands if c.tick == reaction)
    return {"fault": name, "state": state, "reason": reason, "seen_s": seen_s, "rest_s": rest_s}


def find_reaction(rig: PipelineRig) -> int | None:
    """The first tick that does not run the next action."""
    for _ in range(HORIZON + 40):
        if rig.tick().action is not Action.RUN:
            tick = rig.k
            rig.run(40)
            return tick
    return None


def describe(rig: PipelineRig) -> str:
    from phyai_ros.reporting import name_state

    return name_state(rig.pipeline.record)


def measure_rest(rig: PipelineRig, cycles: int) -> float:
    """From the fault until the reference first stands still; NaN while it does not."""
    moving = np.abs(rig.robot.speeds[cycles:]).max(axis=1) > 0
    still = np.flatnonzero(~moving)
    return DT_S + float(still[0] + 1) * CYCLE_NS * 1e-9 if len(still) else float("nan")


@pytest.fixture(scope="module")
def matrix():
    return {name: run_case(name, case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_seen_called_by_its_name_and_ends_at_rest(matrix, name):
    row, case = matrix[name], CASES[name]
    if name.startswith("SIGKILL"):
        assert row["rest_s"] < CHUNK_S + 0.1 / 4.0 + 0.3
        return
    if case.reason is None:
        assert row["state"] == "running" and np.isnan(row["seen_s"])
        return
    assert row["reason"] == case.reason.value
    assert row["seen_s"] <= case.seen_s + 2 * DT_S
    assert row["rest_s"] <= row["seen_s"] + 0.2


def test_the_page_says_what_was_measured(matrix):
    def cell(value: float) -> str:
        return "" if np.isnan(value) else f"{value:.2f}"

    rows = [
        f"| {r['fault']} | {r['state']} | {r['reason'] or 'ok'} | {cell(r['seen_s'])} | {cell(r['rest_s'])} |"
        for r in matrix.values()
    ]
    page = HEAD.format(age=MAX_AGE_S) + "\n".join(rows) + "\n"
    PAGE.write_text(page)
    assert PAGE.read_text().count("\n| ") == len(CASES) + 1
