"""From a policy's rows to the controller's reference, through the whole pipeline and a controller model.

Guards against: jumps deep in a chunk, a slam at the start or after a restart, an approach that never ends or that a
stop does not end, a stuck joint that is pushed on, an e-stop undone by itself, shadow commands that reach the robot, a
jump at takeover.
"""

from __future__ import annotations

import numpy as np
import pytest

from phyai_core.types import Action, Fault, Reason
from ros.output_rig import CYCLE_NS
from ros.pipeline_rig import DT_S, STEPS, PipelineRig, slow_plan

PERIOD_S = CYCLE_NS * 1e-9


def speeds(rig: PipelineRig) -> np.ndarray:
    return np.abs(np.diff(rig.robot.references, axis=0)) / PERIOD_S


def jump_at_20(request):
    rows = slow_plan(request)
    return rows + np.where(STEPS > 20, 1.0, 0.0) * [1.0, 0.0]


def fast_plan(request):
    return request.obs.last_command + 2.0 * DT_S * STEPS * [1.0, 0.0]


def test_a_chunk_that_is_too_fast_is_travelled_at_the_limit_and_reported():
    rig = PipelineRig(fast_plan)
    rig.run(60)
    assert rig.robot.rejections == []
    assert 0.9 < speeds(rig).max() <= 1.02
    report = rig.motion.report
    assert report.slowdown > 1.9 and report.by_joint[0] >= 2 and report.by_joint[1] == 0
    assert "a at" in report.text and "limit" in report.text
    assert np.abs(np.diff(rig.robot.references, 2, axis=0)).max() / PERIOD_S**2 < 3 * 4.0


def test_r16_a_jump_deep_in_a_chunk_never_exceeds_the_velocity_limit():
    rig = PipelineRig(jump_at_20)
    rig.run(120)
    assert speeds(rig).max() <= 1.02
    assert rig.motion.report.chunks > 0


def test_r16_with_mode_refuse_such_a_chunk_is_not_executed():
    rig = PipelineRig(jump_at_20, limits__mode="refuse")
    rig.run(20)
    assert rig.sent == [] and rig.executor.counters.chunks_rejected > 0
    assert "max_velocity" in rig.commands[-1].text


def far_plan(request):
    """Always wants to be at 0.5 first, wherever it is."""
    return np.tile([0.5, 0.0], (len(STEPS), 1)) + 0.05 * DT_S * STEPS


def test_r17_a_far_first_action_is_refused_by_name():
    rig = PipelineRig(far_plan)
    command = rig.run(20)[-1]
    assert rig.sent == [] and command.reason is Reason.START_TOO_FAR
    assert command.text.startswith("a: the first action is 0.502 from")


def test_r17_or_approached_slowly_and_planned_anew():
    rig = PipelineRig(far_plan, start__mode="ramp", start__ramp_velocity=0.2)
    rig.run_until(lambda command: command.reason is Reason.APPROACH and command.action is Action.RUN)
    rig.run_until(lambda command: command.action is Action.RUN and command.reason is Reason.OK)
    approach = np.array(rig.robot.references)
    assert (np.abs(np.diff(approach, axis=0)) / PERIOD_S).max() <= 0.2 * 1.03
    np.testing.assert_allclose(rig.robot.references[-1], [0.5, 0.0], atol=0.02)
    rig.run(30)
    assert rig.robot.rejections == [] and speeds(rig).max() <= 0.22


def test_an_approach_further_than_its_limit_is_refused():
    rig = PipelineRig(far_plan, start__mode="ramp", start__ramp_limit_rad=0.3)
    assert "start.ramp_limit_rad (0.3)" in rig.run(20)[-1].text and rig.sent == []


def test_an_approach_ends_with_a_fault_and_begins_again_after_it():
    rig = PipelineRig(far_plan, start__mode="ramp")
    rig.run_until_moving()
    rig.run(10)
    rig.wrongs.joints_on = False
    rig.run(8)
    rig.run_until_rest()
    assert not rig.motion.on_the_way
    rig.wrongs.joints_on = True
    rig.run_until(lambda command: command.action is Action.RUN and command.reason is Reason.OK, 400)


def test_a_policy_that_never_starts_where_it_said_is_given_up():
    def runaway(request):
        return request.obs.measured + 0.3 + 0.0 * STEPS

    rig = PipelineRig(runaway, start__mode="ramp")
    rig.run(600)
    assert rig.commands[-1].reason is Reason.START_TOO_FAR
    assert rig.robot.position.max() < 1.2


def test_r32_a_later_chunk_that_starts_elsewhere_does_not_step_the_robot():
    def elsewhere(request):
        return slow_plan(request) + (0.8 if request.leftover is not None else 0.0)

    rig = PipelineRig(elsewhere)
    rig.run(100)
    assert speeds(rig).max() <= 1.02 and rig.robot.rejections == []
    assert rig.executor.counters.chunks_rejected > 0  # 0.8 rad is more than a slow-down cures


def test_a_joint_that_does_not_follow_stops_the_robot_until_someone_resets():
    rig = PipelineRig(fast_plan, tracking__max_error=[0.1], tracking__time_s=0.2)
    rig.run_until_moving()
    rig.wrongs.stuck = True
    command = rig.run_until(lambda command: command.reason is Reason.FOLLOWING_ERROR)
    assert command.text.startswith("a is")
    rig.wrongs.stuck = False
    rig.run_until_rest()
    sent = len(rig.sent)
    rig.run(30)
    assert len(rig.sent) == sent and rig.commands[-1].reason is Reason.FOLLOWING_ERROR
    rig.pipeline.reset(Reason.RESET, "looked at it")
    rig.run_until_moving()


@pytest.mark.parametrize("silent", [False, True])
def test_an_estop_brakes_or_falls_silent_and_stays(silent):
    rig = PipelineRig(stop__estop_stop="silence" if silent else "brake")
    rig.run_until_moving()
    rig.run(10)
    epoch, sent = rig.executor.epoch, len(rig.sent)
    rig.pipeline.press_estop(True)
    rig.tick()
    assert rig.executor.epoch > epoch
    assert len(rig.sent) == sent + (not silent)
    rig.pipeline.press_estop(False)
    assert rig.run(40)[-1].reason is Reason.ESTOP
    assert len(rig.sent) == sent + (not silent)
    assert rig.pipeline.clear_estop() == ""
    rig.run_until_moving()
    assert rig.robot.rejections == []


def test_pause_and_deadman_begin_epochs_and_resume_with_fresh_observations():
    rig = PipelineRig(require_enable=True, stop__enable_timeout_s=0.2)
    assert rig.run(10)[-1].reason is Reason.DISABLED and rig.sent == []
    rig.pipeline.enable(True)
    for _ in range(30):
        rig.pipeline.enable(True)
        rig.tick()
    assert rig.commands[-1].action is Action.RUN
    late = next(i for i in range(20) if rig.tick().reason is Reason.DISABLED)
    assert late == 4  # the fifth tick, 0.2 s after the last message
    epoch = rig.executor.epoch
    rig.pipeline.enable(True)
    rig.pipeline.pause(True)
    assert rig.run(8)[-1].reason is Reason.PAUSED
    rig.pipeline.pause(False)
    rig.pipeline.enable(True)
    stamp_ns = rig.now_ns
    for _ in range(30):
        rig.pipeline.enable(True)
        if (command := rig.tick()).action is Action.RUN:
            break
    assert rig.executor.epoch > epoch and command.chunk.obs_stamp_ns > stamp_ns


def test_not_the_owner_means_silence_and_a_start_from_where_the_robot_is_then():
    rig = PipelineRig()
    rig.run_until_moving()
    rig.run(10)
    sent = len(rig.sent)
    rig.pipeline.own(Fault(Reason.NOT_OWNER, "joint_trajectory_controller is inactive"))
    rig.run(20)
    assert len(rig.sent) == sent and rig.pipeline.record.silent
    rig.robot.controller.activate(np.array([0.7, 0.7]))  # someone else moved it
    rig.robot.position = np.array([0.7, 0.7])
    rig.pipeline.own(None)
    rig.run_until_moving()
    rig.run(5)
    np.testing.assert_allclose(rig.robot.references[-1], [0.7, 0.7], atol=0.05)
    assert speeds(rig)[-20:].max() < 0.3


def test_in_shadow_mode_nothing_reaches_the_robot_until_takeover():
    rig = PipelineRig(shadow=True)
    rig.run(40)
    assert rig.sent == [] and len(rig.shadowed) >= 2 and not rig.pipeline.live
    assert np.abs(rig.motion.following_error).max() > 0.01  # what the robot does instead
    rig.pipeline.take_over(True)
    rig.run(40)
    assert rig.sent and rig.pipeline.live
    first = rig.sent[0].points[0]
    np.testing.assert_allclose(first.positions, [0.0, 0.0], atol=0.02)  # from the pose, not from the shadow's plan
    assert speeds(rig).max() < 0.3
    count = len(rig.shadowed)
    rig.pipeline.take_over(False)
    rig.run_until(lambda command: not rig.pipeline.live)
    assert not np.any(rig.robot.speeds[-1])  # it stopped the robot before it let go
    rig.run(20)
    assert len(rig.shadowed) > count


def test_a_complaint_of_the_controller_stops_until_reset():
    rig = PipelineRig()
    rig.run_until_moving()
    rig.output.take_fault = lambda: Fault(Reason.CONTROLLER, "path tolerance violated")
    rig.tick()
    del rig.output.take_fault
    assert rig.run(30)[-1].reason is Reason.CONTROLLER
    rig.pipeline.reset(Reason.RESET, "")
    rig.run_until_moving()


def test_the_models_own_values_are_slowed_with_the_rows():
    """Real-time chunking goes on from them: they have to mean what is executed."""
    rig = PipelineRig(fast_plan)
    rig.run_until_moving()
    chunk, entry = rig.commands[-1].chunk, rig.commands[-1].index
    assert rig.motion.report.slowdown > 1.5
    behind = slice(entry + 4, None)  # on the way to its first row the model has said nothing
    np.testing.assert_allclose(chunk.latent[behind], chunk.actions[behind], atol=0.01)  # one unit here
