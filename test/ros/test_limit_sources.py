"""Guards against: a looser limit that wins, a limit of the wrong joint, 0 taken for a limit, a file misread quietly."""

from __future__ import annotations

import numpy as np
import pytest

from phyai_ros.limit_sources import read_joint_limits, resolve_limits
from phyai_ros.settings import Limits

URDF = """<robot name="arm">
  <joint name="yaw" type="revolute"><limit lower="-1.5" upper="1.5" velocity="0.8" effort="10"/></joint>
  <joint name="elbow" type="continuous"><limit velocity="3.0" effort="10"/></joint>
  <joint name="finger" type="prismatic"><limit lower="0" upper="0.04" velocity="0" effort="10"/></joint>
  <joint name="base" type="fixed"/>
</robot>"""
MOVEIT = """
joint_limits:
  yaw: {has_velocity_limits: true, max_velocity: 2.0, has_acceleration_limits: true, max_acceleration: 3.0}
  elbow:
    has_position_limits: true
    min_position: -2.0
    max_position: 2.0
    has_acceleration_limits: false
    max_acceleration: 0.1
    has_jerk_limits: true
    max_jerk: 50.0
"""
NAMES = ("elbow", "yaw", "finger")


def limits(**changes) -> Limits:
    return Limits(**{"max_velocity": (1.0, 1.0, 1.0), "max_acceleration": (5.0, 5.0, 5.0), **changes})


def test_the_tightest_of_all_sources_counts_by_name(tmp_path):
    (tmp_path / "limits.yaml").write_text(MOVEIT)
    (tmp_path / "arm.urdf").write_text(URDF)
    files = {"joint_limits_file": str(tmp_path / "limits.yaml"), "urdf_file": str(tmp_path / "arm.urdf")}
    found = resolve_limits(NAMES, limits(**files, position_upper=(1.0, 9.0, 9.0)))
    np.testing.assert_allclose(found.velocity, [1.0, 0.8, 1.0])  # parameter, URDF, parameter (0 in the URDF: unknown)
    np.testing.assert_allclose(found.acceleration, [5.0, 3.0, 5.0])
    np.testing.assert_allclose(found.jerk, [50.0, np.inf, np.inf])
    np.testing.assert_allclose(found.lower, [-2.0, -1.5, 0.0])
    np.testing.assert_allclose(found.upper, [1.0, 1.5, 0.04])


def test_a_description_from_a_topic_counts_the_same():
    found = resolve_limits(NAMES, limits(), URDF)
    np.testing.assert_allclose(found.velocity, [1.0, 0.8, 1.0])
    assert found.upper[0] == np.inf  # continuous


@pytest.mark.parametrize(
    ("changes", "urdf", "words"),
    [
        ({"urdf_file": "/nowhere/arm.urdf"}, "", "limits.urdf_file: /nowhere/arm.urdf cannot be read"),
        ({}, "<robot><joint", "not XML"),
        ({"position_lower": (0.0, 1.6, 0.0)}, URDF, "position limits of yaw: the sources together leave no room"),
    ],
)
def test_what_is_wrong_is_named(changes, urdf, words):
    with pytest.raises(ValueError, match=words):
        resolve_limits(NAMES, limits(**changes), urdf)


def test_a_yaml_file_that_is_something_else_is_refused():
    with pytest.raises(ValueError, match="no entry joint_limits"):
        read_joint_limits("robot: arm")
