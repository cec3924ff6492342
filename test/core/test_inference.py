"""Guards against: chunks that lose their epoch or stamp, a leftover that is not used, runs that cannot be repeated,
a mode the policy or engine was not made for, and relative actions conditioned on an old frame.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from core.fakes import LinearFlow, make_spec
from phyai_core.engine import Engine, blank_observation
from phyai_core.inference import PolicyInference, seeded_noise
from phyai_core.rtc import RtcConfig
from phyai_core.types import Feature, InferenceRequest, Leftover, Source

SPEC = make_spec()
SOURCE = Source("front", stamp_ns=70, arrival_ns=80, arrival_tick=3)


def decode(recorded):
    return dataclasses.replace(blank_observation(SPEC), stamp_ns=recorded, sources=(SOURCE,))


def make_inference(rtc=RtcConfig(), spec=SPEC, **settings):  # noqa: B008 - frozen
    return PolicyInference(Engine(LinearFlow(spec), torch.device("cpu")), rtc, decode, **settings)


def make_request(seq=4, leftover=None):
    return InferenceRequest(epoch=2, seq=seq, base_tick=30, launch_ns=0, obs=70, leftover=leftover, delay_forecast=2)


def test_a_chunk_carries_the_request_and_the_observation():
    chunk = make_inference()(make_request())
    assert (chunk.epoch, chunk.seq, chunk.base_tick, chunk.obs_stamp_ns) == (2, 4, 30, 70)
    assert chunk.sources == (SOURCE,) and chunk.dt_ns == 40_000_000
    assert chunk.actions.shape == (8, 2) and chunk.latent.shape == (8, 3)
    assert list(chunk.stages_s) == ["decode", "preprocess", "prefix", "denoise", "postprocess"]


def test_frozen_rows_follow_the_leftover_and_released_rows_do_not():
    rows = np.full((5, 3), 3.0, np.float32)
    leftover = Leftover(rows, rows[:, :2], delay=2, execution_horizon=3)
    chunk = make_inference()(make_request(leftover=leftover))
    free = make_inference()(make_request())
    np.testing.assert_allclose(chunk.latent[:2, :2], rows[:2, :2], atol=1e-5)
    np.testing.assert_array_equal(chunk.latent[5:], free.latent[5:])
    np.testing.assert_array_equal(chunk.latent[:, 2:], free.latent[:, 2:])  # padding


def test_noise_depends_on_seed_and_seq_only():
    np.testing.assert_array_equal(seeded_noise(1, 5, 8, 3), seeded_noise(1, 5, 8, 3))
    assert not np.array_equal(seeded_noise(1, 5, 8, 3), seeded_noise(1, 6, 8, 3))
    assert not np.array_equal(seeded_noise(1, 5, 8, 3), seeded_noise(2, 5, 8, 3))
    many = seeded_noise(0, 0, 1000, 32)
    assert many.dtype == np.float32 and abs(many.mean()) < 0.02 and abs(many.std() - 1) < 0.02


def test_a_run_can_be_repeated_chunk_by_chunk():
    first, second = make_inference(seed=7), make_inference(seed=7)
    first(make_request(seq=1))
    np.testing.assert_array_equal(first(make_request(seq=2)).latent, second(make_request(seq=2)).latent)


def test_injected_delay_is_slept_once_per_chunk_and_reported():
    slept = []
    chunk = make_inference(inject_delay_s=0.24, sleep=slept.append)(make_request())
    assert slept == [0.24] and chunk.stages_s["injected"] == 0.24
    make_inference(sleep=slept.append)(make_request())
    assert slept == [0.24]


@pytest.mark.parametrize(("settings", "name"), [({"seed": -1}, "seed"), ({"inject_delay_s": -0.1}, "inject_delay_s")])
def test_wrong_settings_name_themselves(settings, name):
    with pytest.raises(ValueError, match=rf"inference\.{name} is -.*; allowed is"):
        make_inference(**settings)


def test_a_mode_the_policy_does_not_offer_is_refused():
    with pytest.raises(ValueError, match=r"rtc\.mode is 'ramp'; allowed for policy 'linear' is none, identity"):
        make_inference(RtcConfig("ramp"), make_spec(rtc_modes=("none", "identity")))


class RelativeFlow(LinearFlow):
    """Both joints are relative to the state; model units are robot units."""

    def postprocess(self, latents, obs):
        return latents[:, :2] + obs.state

    def encode_actions(self, actions, obs):
        return np.pad(actions - obs.state, ((0, 0), (0, 1)))


def test_a_leftover_of_relative_actions_is_seen_from_the_newest_observation():
    spec = make_spec(action=(Feature("yaw", mode="relative"), Feature("elbow", mode="relative")))
    moved = dataclasses.replace(blank_observation(spec), state=np.array([0.3, -0.2], np.float32))
    inference = PolicyInference(Engine(RelativeFlow(spec), torch.device("cpu")), RtcConfig(), lambda obs: moved)
    executed = np.linspace([1.0, 2.0], [1.5, 2.5], 5).astype(np.float32)
    old = np.full((5, 3), 99.0, np.float32)  # relative to where the arm was
    chunk = inference(make_request(leftover=Leftover(old, executed, delay=2, execution_horizon=3)))
    np.testing.assert_allclose(chunk.actions[:2], executed[:2], atol=1e-5)


def test_an_action_to_exclude_must_exist_and_the_mode_must_allow_it():
    with pytest.raises(ValueError, match=r"rtc\.exclude is \['gripper'\]; allowed are actions of 'linear': yaw, elbow"):
        make_inference(RtcConfig(exclude=("gripper",)))
    with pytest.raises(ValueError, match=r"rtc\.exclude is \['elbow'\]; allowed is none with rtc\.mode trained"):
        make_inference(RtcConfig("trained", exclude=("elbow",)), make_spec(rtc_modes=("trained",), rtc_max_delay=3))


def test_a_gradient_mode_needs_an_engine_made_for_it():
    spec = make_spec(rtc_modes=("identity", "fd"))
    with pytest.raises(ValueError, match=r"rtc\.mode is 'fd'; the engine was made with guidance None"):
        make_inference(RtcConfig("fd"), spec)
    engine = Engine(LinearFlow(spec), torch.device("cpu"), guidance="fd")
    with pytest.raises(ValueError, match=r"rtc\.mode is 'identity'"):
        PolicyInference(engine, RtcConfig(), decode)
    PolicyInference(engine, RtcConfig("fd"), decode)(make_request())
