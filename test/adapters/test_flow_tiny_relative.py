"""Guards against: offsets that are added to the wrong joint or not at all, and shipped weights that do not load."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phyai_adapters import load_adapter
from phyai_adapters.flow_tiny import FlowTinyNetwork
from phyai_adapters.flow_tiny_checkpoint import FlowTinyConfig
from phyai_adapters.flow_tiny_relative import FlowTinyRelative
from phyai_core.types import Feature, Observation


def make(state: tuple[Feature, ...]) -> FlowTinyRelative:
    action = tuple(Feature(name, mode="relative") for name in ("yaw", "grip"))
    moments = {"state_mean": (0.0,) * len(state), "state_std": (1.0,) * len(state)}
    config = FlowTinyConfig(state, action, **moments, action_mean=(0.0, 0.5), action_std=(1.0, 2.0), width=16, blocks=1)
    return FlowTinyRelative(config, FlowTinyNetwork(config), torch.device("cpu"))


def observe(*state: float) -> Observation:
    return Observation(1, {}, np.array(state, np.float32), np.zeros(2, np.float32))


def test_actions_start_from_the_position_of_their_own_joint_and_go_back_again():
    adapter = make((Feature("grip"), Feature("yaw", "velocity"), Feature("yaw")))
    obs = observe(10.0, 99.0, 20.0)
    latents = np.array([[0.0, 0.0], [1.0, 1.0]], np.float32)
    actions = adapter.postprocess(latents, obs)
    np.testing.assert_allclose(actions, [[20.0, 10.5], [21.0, 12.5]])
    np.testing.assert_allclose(adapter.encode_actions(actions, obs), latents, atol=1e-6)
    np.testing.assert_allclose(adapter.encode_actions(actions, observe(11.0, 0.0, 20.0))[:, 1], latents[:, 1] - 0.5)


def test_an_action_without_its_position_is_refused():
    with pytest.raises(ValueError, match=r"the state has no position of yaw, grip; train it again"):
        make((Feature("yaw", "velocity"),))


def test_the_shipped_weights_are_those_of_the_recorded_arm():
    adapter = load_adapter("flow_tiny_relative", None, torch.device("cpu"))
    assert [feature.name for feature in adapter.spec.action] == ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
    assert {feature.mode for feature in adapter.spec.action} == {"relative"}
    assert adapter.spec.dt_s == pytest.approx(0.2) and adapter.spec.action_horizon == 8
