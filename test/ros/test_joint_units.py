"""Guards against: grippers that never open or open when they should close, a state in other units than the actions,
RTC prefixes in the wrong units."""

from __future__ import annotations

import numpy as np

from phyai_core.types import ActionChunk, Feature, InferenceRequest, Leftover, PolicySpec
from phyai_ros.joint_units import ConvertedInference, JointUnits
from phyai_ros.joints import JointMap
from phyai_ros.settings import Joints

STATE = [("arm", "position"), ("grip", "position"), ("grip", "velocity"), ("grip", "command"), ("grip", "effort")]
SPEC = PolicySpec(
    "two",
    4,
    0.04,
    (),
    tuple(Feature(name, kind) for name, kind in STATE),
    (Feature("arm"), Feature("grip")),
    latent_dim=2,
)
GRIPPER = Joints(scale=(1.0, -0.8), offset=(0.0, 0.8))  # 0 to 0.8 rad on the robot, 1 (open) to 0 for the policy


class Message:
    name = ("grip", "arm")
    position, velocity, effort = (0.2, 0.5), (-0.4, 0.0), (2.0, 0.0)


def test_the_map_is_exact_both_ways():
    units = JointUnits.from_settings(GRIPPER, SPEC)
    rows = np.array([[0.3, 1.0], [0.3, 0.0], [0.3, 0.5]], np.float32)
    np.testing.assert_allclose(units.to_robot(rows), [[0.3, 0.0], [0.3, 0.8], [0.3, 0.4]], atol=1e-6)
    np.testing.assert_allclose(units.to_policy(units.to_robot(rows)), rows, atol=1e-6)
    assert units.to_robot(rows).dtype == np.float32
    assert JointUnits.from_settings(Joints(), SPEC).trivial and not units.trivial
    one = JointUnits.from_settings(Joints(scale=(-1.0,)), SPEC)
    np.testing.assert_allclose(one.to_robot(rows), -rows)


def test_state_and_measured_are_told_apart():
    joints = JointMap(SPEC, GRIPPER, efforts=True)
    values = joints.collect([(Message, joints.layout(Message.name))])
    np.testing.assert_allclose(joints.measured(values), [0.5, 0.2])  # as the robot counts
    state = joints.state(values, np.array([0.5, 0.4], np.float32))
    np.testing.assert_allclose(state, [0.5, 0.75, 0.5, 0.5, -1.6], atol=1e-6)  # as the policy counts
    np.testing.assert_allclose(joints.effort(values), [0.0, 2.0])
    np.testing.assert_allclose(joints.to_policy(np.array([0.5, 0.8], np.float32)), [0.5, 0.0], atol=1e-6)


def test_actions_that_are_no_joints_need_no_message():
    joints = JointMap(SPEC, Joints(), joint_actions=(True, False))
    values = joints.collect([(Message, joints.layout(Message.name))])
    np.testing.assert_allclose(joints.measured(values), [0.5, 0.0])


def test_the_inference_sees_policy_units_and_gives_robot_units():
    seen = []

    def infer(request):
        seen.append(request.leftover)
        rows = np.array([[0.3, 1.0]], np.float32)
        return ActionChunk(0, 0, 0, 0, rows, rows, 1)

    convert = ConvertedInference(infer, JointUnits.from_settings(GRIPPER, SPEC))
    leftover = Leftover(np.ones((1, 2), np.float32), np.array([[0.3, 0.8]], np.float32), 1, 1)
    chunk = convert(InferenceRequest(0, 0, 0, 0, None, leftover, 1))
    np.testing.assert_allclose(chunk.actions, [[0.3, 0.0]], atol=1e-6)
    np.testing.assert_allclose(chunk.latent, [[0.3, 1.0]])  # model units stay
    np.testing.assert_allclose(seen[0].actions, [[0.3, 0.0]], atol=1e-6)
    convert(InferenceRequest(0, 0, 0, 0, None, None, 1))
    assert seen[1] is None


def test_a_joint_cannot_be_scaled_to_nothing():
    from phyai_ros.robot_checks import check_robot
    from phyai_ros.settings import Settings

    problems = list(check_robot(Settings(joints=Joints(scale=(1.0, 0.0))), SPEC))
    assert [problem.name for problem in problems] == ["joints.scale"]
