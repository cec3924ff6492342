"""Guards against: joints in the wrong order, a missing value filled in, a value of one joint used for another."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from phyai_core.types import Feature, PolicySpec
from phyai_ros.joints import JointMap, robot_joint_names
from phyai_ros.settings import Joints

ACTIONS = ("yaw", "elbow")


def make_spec(*state: Feature) -> PolicySpec:
    return PolicySpec("arm", 8, 0.04, (), state, tuple(Feature(name) for name in ACTIONS), len(ACTIONS))


FULL = make_spec(
    Feature("elbow"),
    Feature("yaw"),
    Feature("yaw", "velocity", "rad/s"),
    Feature("elbow", "command"),
    Feature("lift", "position", "m"),
    Feature("yaw", "command"),
    Feature("lift", "effort", "N"),
)


def make_message(**joints: tuple[float, ...]) -> SimpleNamespace:
    """{name: (position, velocity, effort)}; a field that no joint gives is left empty."""
    columns = list(zip(*joints.values(), strict=True)) + [()] * 3
    position, velocity, effort = (array("d", column) for column in columns[:3])
    return SimpleNamespace(name=list(joints), position=position, velocity=velocity, effort=effort)


def collect(joint_map: JointMap, *messages: SimpleNamespace) -> np.ndarray:
    return joint_map.collect([(message, joint_map.layout(message.name)) for message in messages])


def problem(joint_map: JointMap, message: SimpleNamespace) -> str:
    return joint_map.check(message, joint_map.layout(message.name))


@pytest.mark.parametrize("order", [("yaw", "elbow", "lift", "other"), ("other", "lift", "elbow", "yaw")])
def test_the_state_follows_the_policy_whatever_the_order_of_the_message(order):
    joints = {"yaw": (0.1, 1.1, 2.1), "elbow": (0.2, 1.2, 2.2), "lift": (0.3, 1.3, 2.3), "other": (9.0, 9.0, 9.0)}
    joint_map = JointMap(FULL, Joints())
    values = collect(joint_map, make_message(**{name: joints[name] for name in order}))
    state = joint_map.state(values, np.array([0.7, 0.8], np.float32))
    np.testing.assert_allclose(state, [0.2, 0.1, 1.1, 0.8, 0.3, 0.7, 2.3], rtol=1e-6)
    np.testing.assert_allclose(joint_map.measured(values), [0.1, 0.2], rtol=1e-6)
    assert state.dtype == np.float32


def test_names_and_prefix_of_the_robot_replace_those_of_the_policy():
    renamed = Joints(names=("base", "arm"), prefix="left_")
    joint_map = JointMap(make_spec(Feature("elbow"), Feature("lift")), renamed)
    assert robot_joint_names(renamed, FULL) == ("left_base", "left_arm")
    assert joint_map.required == {"left_base", "left_arm", "left_lift"}
    values = collect(joint_map, make_message(left_base=(1.0,), left_arm=(2.0,), left_lift=(3.0,)))
    np.testing.assert_allclose(joint_map.state(values, np.zeros(2)), [2.0, 3.0])
    np.testing.assert_allclose(joint_map.measured(values), [1.0, 2.0])


def test_messages_of_several_publishers_are_merged_and_the_later_one_wins():
    joint_map = JointMap(make_spec(Feature("yaw"), Feature("elbow")), Joints())
    values = collect(joint_map, make_message(yaw=(1.0,), elbow=(2.0,)), make_message(elbow=(5.0,)))
    np.testing.assert_allclose(joint_map.measured(values), [1.0, 5.0])


def test_a_joint_that_no_message_names_stays_nan():
    joint_map = JointMap(make_spec(Feature("yaw")), Joints())
    assert np.isnan(collect(joint_map, make_message(yaw=(1.0,)))).sum() == 1
    assert joint_map.layout(["yaw", "other"]).joints == {"yaw"}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (make_message(yaw=(np.nan, 0.0), elbow=(0.0, 0.0)), "the position nan for the joint yaw"),
        (make_message(yaw=(0.0, np.inf), elbow=(0.0, 0.0)), "the velocity inf for the joint yaw"),
        (
            make_message(yaw=(0.0,), elbow=(0.0,)),
            "0 velocity values for 2 joints; the policy needs the velocity of yaw",
        ),
    ],
)
def test_a_value_that_is_missing_or_no_number_is_named(message, sentence):
    joint_map = JointMap(make_spec(Feature("yaw"), Feature("yaw", "velocity")), Joints())
    assert sentence in problem(joint_map, message)


def test_what_the_policy_does_not_need_may_be_missing_or_nan():
    joint_map = JointMap(make_spec(Feature("yaw")), Joints())
    assert problem(joint_map, make_message(yaw=(0.0, np.nan), elbow=(0.0, np.nan), other=(np.nan, np.nan))) == ""


def test_a_joint_named_twice_is_refused():
    joint_map = JointMap(make_spec(Feature("yaw")), Joints())
    message = SimpleNamespace(name=["yaw", "elbow", "yaw"], position=[0.0, 1.0, 2.0], velocity=[], effort=[])
    assert problem(joint_map, message) == "names yaw twice"


def test_a_state_the_policy_cannot_have_is_refused_when_the_map_is_made():
    with pytest.raises(ValueError, match="'lift' of arm is a last command, but its actions are yaw, elbow"):
        JointMap(make_spec(Feature("lift", "command")), Joints())
    with pytest.raises(ValueError, match="kind 'torque'; allowed: position, velocity, effort, command"):
        JointMap(make_spec(Feature("yaw", "torque")), Joints())
