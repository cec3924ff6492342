"""What is read from a live controller, and what follows for the trajectories sent to it.

Guards against: a publish style that is rough on the controller at hand, a joint nobody commands, a joint order that is
assumed, a controller that does not answer taken for one that does.
"""

from __future__ import annotations

import pytest

from phyai_ros.controller_facts import judge_parameters, order_joints
from ros.fake_controller import FakeController
from ros.policy_rig import PolicyRig


@pytest.mark.parametrize(
    ("values", "profile"),
    [
        ({}, "replace"),
        ({"interpolate_from_desired_state": False}, "replace"),
        ({"interpolate_from_desired_state": True}, "splice"),
        ({"open_loop_control": True}, "splice"),
        ({"allow_trajectory_replacement": True, "interpolate_from_desired_state": False}, "splice"),
        ({"allow_trajectory_replacement": False, "interpolate_from_desired_state": False}, "replace"),
    ],
)
def test_the_profile_follows_from_how_the_controller_takes_a_new_trajectory(values, profile):
    assert judge_parameters("jtc", values).profile == profile


def test_settings_of_the_controller_that_will_surprise_are_told():
    values = {"cmd_timeout": 0.05, "constraints.elbow.trajectory": 0.01, "constraints.wrist.trajectory": 0.3}
    warnings = judge_parameters("jtc", values).find_warnings(0.04)
    assert len(warnings) == 2
    assert "cmd_timeout 0.05 s" in warnings[0] and "elbow 0.01" in warnings[1] and "wrist" not in warnings[1]
    assert judge_parameters("jtc", {"cmd_timeout": 1.0}).find_warnings(0.04) == []


def test_the_joint_set_has_to_be_the_same_and_the_order_is_the_controllers():
    facts = judge_parameters("jtc", {"joints": ["b", "a"]})
    assert order_joints(facts, ("a", "b")) == ("b", "a")
    with pytest.raises(ValueError, match=r"it does not have c; nobody commands its b. Correct"):
        order_joints(facts, ("a", "c"))
    assert order_joints(judge_parameters("forward", {}), ("a", "b")) == ("a", "b")


def leads_s(rig: PolicyRig) -> list[float]:
    """How far each trajectory but the first starts ahead of each tick that adopted a chunk."""
    heard = {
        name: [m.header.stamp.sec + m.header.stamp.nanosec * 1e-9 for m in rig.robot.heard[name]]
        for name in ("trajectory", "chunk")
    }
    return [start_s - tick_s for start_s in heard["trajectory"][1:] for tick_s in heard["chunk"][1:]]


@pytest.mark.parametrize("replaces", [False, True])
def test_auto_reads_the_live_controller_and_publishes_to_suit_it(replaces):
    with PolicyRig(**{"output.profile": "auto", "inference.inject_delay_s": 0.05}) as rig:
        parameters = {} if replaces else {"allow_trajectory_replacement": True}
        FakeController(rig, joints=["elbow", "shoulder"], **parameters)
        rig.start()
        rig.wait_for_news("chunk", 3)
        is_ahead = lambda: any(abs(lead_s - 0.01) < 1e-6 for lead_s in leads_s(rig))  # noqa: E731
        is_behind = lambda: any(-0.3 < lead_s < -0.03 for lead_s in leads_s(rig))  # noqa: E731
        rig.wait(is_behind if replaces else is_ahead, "a trajectory that suits it")
        assert not (replaces and is_ahead())
        assert list(rig.robot.heard["trajectory"][-1].joint_names) == ["elbow", "shoulder"]


def test_a_controller_with_another_joint_keeps_the_node_from_activating():
    with PolicyRig(**{"output.profile": "auto"}) as rig:
        FakeController(rig, joints=["shoulder", "elbow", "gripper"])
        assert rig.node.trigger_configure().name == "SUCCESS"
        assert rig.node.trigger_activate().name == "FAILURE"


def test_a_controller_that_does_not_answer_is_told_in_the_diagnostics():
    with PolicyRig(**{"output.profile": "auto", "controller.timeout_s": 0.2}) as rig:
        rig.start()
        rig.wait_for_state("running")
        rig.wait_for_news("diagnostics")
        values = {pair.key: pair.value for pair in rig.robot.heard["diagnostics"][-1].status[0].values}
        assert "as splice, unchecked: nobody offers the service" in values["controller_0"]
