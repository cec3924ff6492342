"""The node on a real ROS graph. Guards against: publishing while inactive, guessed inputs, silence on a fault,
zeros, chunks of a dead epoch, half-configured nodes, traces instead of sentences, threads that outlive the node."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from std_msgs.msg import Bool, String

from ros.policy_rig import PolicyRig, is_braking

TOPICS = ("status", "chunk", "timing", "command", "diagnostics", "trajectory", "forward")


@pytest.fixture(autouse=True)
def own_domain(ros_environment):
    """Every test of this file talks on a domain of this process."""


def test_drives_the_robot_and_tells_how():
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        rig.wait_for_news("timing", 4)
        heard = rig.robot.heard
        timing = heard["timing"][-2]
        chunk = next(chunk for chunk in heard["chunk"] if (chunk.epoch, chunk.seq) == (timing.epoch, timing.seq))
        assert (chunk.rows, chunk.columns, list(chunk.names)) == (24, 2, ["shoulder", "elbow"])
        assert chunk.source_names and len(chunk.actions) == 48
        assert (timing.bound, timing.l_env) == ("environment", pytest.approx(0.24))
        assert timing.l_critical_how and timing.x > 1 and timing.y == pytest.approx(1.0, rel=0.3)
        assert timing.entry_row == timing.delay_counted == chunk.entry_row
        assert all(is_braking(t) and list(t.joint_names) == ["shoulder", "elbow"] for t in heard["trajectory"])
        rows = np.array([c.position for c in heard["command"]])
        assert np.abs(np.diff(rows, axis=0)).max() < 0.02


def test_is_silent_unless_active():
    with PolicyRig() as rig:
        assert rig.node.trigger_configure().name == "SUCCESS"
        rig.wait(lambda: rig.robot.count_publishers("joint_states"), "robot")
        assert all(not rig.robot.heard[name] for name in TOPICS)
        assert rig.node.trigger_activate().name == "SUCCESS"
        rig.wait_for_state("running")
        assert rig.node.trigger_deactivate().name == "SUCCESS"
        rig.wait(lambda: rig.robot.status.state == "inactive", "last status")
        before = {name: len(rig.robot.heard[name]) for name in TOPICS}
        assert is_braking(rig.robot.heard["trajectory"][-1])
        threading.Event().wait(0.4)  # silence can only be seen by listening
        assert {name: len(rig.robot.heard[name]) for name in TOPICS} == before


def test_can_be_deactivated_cleaned_up_and_started_again():
    with PolicyRig() as rig:
        epoch = rig.start().wait_for_state("running").epoch
        assert rig.node.trigger_deactivate().name == "SUCCESS"
        assert rig.activate().wait_for_state("running").epoch > epoch
        assert rig.node.trigger_deactivate().name == "SUCCESS"
        assert rig.node.trigger_cleanup().name == "SUCCESS"
        assert {t.name for t in threading.enumerate()}.isdisjoint({"inference", "control_loop"})
        rig.start().wait_for_state("running")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rtc.mode": "magic"}, "rtc.mode: 'magic' is not allowed"),
        ({"rtc.execution_horizon": 24}, "rtc.execution_horizon"),
        ({"inference.device": "cuda:7"}, "inference.device is 'cuda:7'"),
        ({"inference.adapter": "pi99"}, "inference.adapter: 'pi99' is not allowed. Allowed: act, "),
        ({"cameras.keys": ["wrist"], "cameras.wrist.topic": "x"}, "cameras.keys"),
        ({"limits.max_acceleration": [-1.0]}, "limits.max_acceleration"),
    ],
)
def test_wrong_settings_fail_configure_with_a_sentence(parameters, said, capfd):
    with PolicyRig(**parameters) as rig:
        assert rig.node.trigger_configure().name == "FAILURE"
        assert said in capfd.readouterr().err


def test_a_failed_configure_can_be_retried():
    with PolicyRig() as rig:
        rig.misbehaviour.load_error = "checkpoint: /x is not there"
        assert rig.node.trigger_configure().name == "FAILURE"
        rig.misbehaviour.load_error = ""
        rig.start().wait_for_state("running")


def test_inference_too_slow_for_the_execution_horizon_fails_activate(capfd):
    with PolicyRig(**{"inference.inject_delay_s": 0.75}) as rig:
        assert rig.node.trigger_configure().name == "SUCCESS"
        assert rig.node.trigger_activate().name == "FAILURE"
        assert "allowed is 0.720 s, the 24 - 6 rows" in capfd.readouterr().err
        assert not rig.robot.heard["trajectory"] and not rig.robot.heard["status"]


def test_a_delay_beyond_the_execution_horizon_is_said_in_diagnostics():
    with PolicyRig(**{"inference.inject_delay_s": 0.32}) as rig:
        rig.start().wait_for_state("running")
        values = {}

        def told() -> bool:
            for message in rig.robot.heard["diagnostics"]:
                values.update({pair.key: pair.value for pair in message.status[0].values})
            return "warning_rtc" in values

        rig.wait(told, "remark on the delay")
        assert "more than the execution horizon 6" in values["warning_rtc"]


def test_camera_stops_then_comes_back():
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        rig.robot.camera_on = False
        status = rig.wait_for_state("stopped", "input_stale")
        assert "camera/front/image_raw" in status.text
        assert is_braking(rig.robot.heard["trajectory"][-1])
        epoch = status.epoch
        rig.robot.camera_on = True
        assert rig.wait_for_state("running").epoch >= epoch


def test_a_joint_vanishes():
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        rig.robot.joints = ["shoulder"]
        status = rig.wait_for_state("stopped")
        assert "elbow" in status.text
        assert is_braking(rig.robot.heard["trajectory"][-1])


def test_a_chunk_with_nan_is_never_published():
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        rig.misbehaviour.nan = True
        status = rig.wait_for_state("stopped", "bad_chunk")
        assert "elbow in row 5" in status.text
        assert all(is_braking(t) for t in rig.robot.heard["trajectory"])
        assert all(np.isfinite(c.position).all() for c in rig.robot.heard["command"])
        rig.misbehaviour.nan = False
        rig.wait_for_state("running")


def test_a_policy_that_raises_stops_the_robot_with_its_words():
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        rig.misbehaviour.error = RuntimeError("CUDA out of memory")
        assert "CUDA out of memory" in rig.wait_for_state("stopped", "policy_error").text
        rig.misbehaviour.error = None
        rig.wait_for_state("running")


def test_a_hung_policy_stops_the_robot_and_deactivation_still_works():
    with PolicyRig(**{"inference.hang_after_s": 0.5}) as rig:
        rig.start().wait_for_state("running")
        rig.misbehaviour.go_on.clear()
        rig.wait_for_state("stopped", "policy_error")
        assert rig.node.trigger_deactivate().name == "SUCCESS"


def test_a_far_first_action_is_refused_by_name():
    with PolicyRig() as rig:
        rig.misbehaviour.offset = 0.8
        rig.start()
        assert "shoulder" in rig.wait_for_state("waiting", "start_too_far").text
        assert not rig.robot.heard["trajectory"]


def test_enable_is_a_deadman():
    with PolicyRig(require_enable=True) as rig:
        rig.start()
        rig.wait_for_state("disabled", "disabled")
        assert not rig.robot.heard["trajectory"]
        rig.robot.enable.publish(Bool(data=True))
        epoch = rig.wait_for_state("running").epoch
        rig.robot.enable.publish(Bool(data=False))
        assert rig.wait_for_state("disabled").epoch > epoch
        assert is_braking(rig.robot.heard["trajectory"][-1])


def test_reset_starts_a_new_epoch():
    with PolicyRig() as rig:
        rig.start()
        epoch = rig.wait_for_state("running").epoch
        response = rig.robot.reset.call(rig.robot.reset.srv_type.Request(), 5.0)
        assert response.success
        assert rig.wait_for_state("running").epoch > epoch


def test_forward_commands_are_sent_at_the_controller_rate():
    with PolicyRig(**{"output.type": "forward_command", "output.rate_hz": 100.0}) as rig:
        rig.start().wait_for_state("running")
        commands, forwards = len(rig.robot.heard["command"]), len(rig.robot.heard["forward"])
        rig.wait_for_news("command", 20)
        ticks = len(rig.robot.heard["command"]) - commands
        assert 2.0 <= (len(rig.robot.heard["forward"]) - forwards) / ticks <= 5.0  # 4, less where ticks come late


def test_the_prompt_is_heard_and_reported():
    with PolicyRig(prompt="wait") as rig:
        rig.start()
        rig.robot.prompt.publish(String(data="follow the puck"))
        rig.wait(lambda: rig.robot.status.prompt == "follow the puck", "prompt in status")


def test_a_lost_policy_process_stops_the_robot_and_a_reset_brings_it_back():
    arm = {"inference.adapter": "flow_tiny", "inference.placement": "process"}
    loose = {"limits.max_velocity": [50.0], "limits.max_acceleration": [50.0], "start.max_step_rad": 5.0}
    with PolicyRig(**arm, **loose) as rig:
        rig.robot.joints, rig.robot.position = ["yaw", "shoulder", "elbow", "wrist_pitch"], [0.0, 0.5, 1.5, 1.1]
        epoch = rig.start().wait_for_state("running").epoch
        child = rig.node._session._policy.engine.pid
        os.kill(child, signal.SIGKILL)
        rig.wait_for_state("stopped")
        assert all(is_braking(t) for t in rig.robot.heard["trajectory"])
        assert rig.robot.reset.call(rig.robot.reset.srv_type.Request(), 5.0).success
        assert rig.wait_for_state("running").epoch > epoch
        assert rig.node._session._policy.engine.pid != child
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
