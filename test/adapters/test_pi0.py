"""Guards, for pi0, against: a state that is not normalised or padded, a state token that sees the actions, a prompt
cleaned where upstream does not, and the two code bases' processing mixed up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pi_goldens import CAMERAS, UNNORMALISER, make_observation, openpi_checkpoint, tensors
from pi_parity import CPU, PiParity
from torch.nn.functional import silu

from phyai_adapters._flow_time import model_times, time_features
from phyai_adapters._trace import recorded_inputs
from phyai_adapters.pi0 import Pi0

TASK = "pick_up the\nred  block "


def text_of(adapter, observation) -> str:
    ids = adapter.prompt_ids(observation)
    assert ids[0] == 2
    return bytes(token - 3 for token in ids[1:]).decode()


class TestPi0(PiParity):
    kind = "pi0"

    def expected_embedding(self, adapter, latents, row):
        weights = {key.removeprefix("model."): value for key, value in tensors("pi0", "model").items()}
        features = time_features(model_times(10, accumulate=False), 32, (4e-3, 4.0))[row].float()
        x = latents @ weights["action_in_proj.weight"].T + weights["action_in_proj.bias"]
        x = torch.cat((x, features.expand(len(x), -1)), dim=-1)
        x = silu(x @ weights["action_time_mlp_in.weight"].T + weights["action_time_mlp_in.bias"])
        return x @ weights["action_time_mlp_out.weight"].T + weights["action_time_mlp_out.bias"]

    def test_processor_gives_upstreams_tokens_state_and_actions_bit_by_bit(self, adapter):
        recorded = tensors("pi0", "processor_io")
        observation = replace(self.make_observation(0), state=recorded["raw.observation.state"].numpy(), prompt=TASK)
        with pytest.warns(UserWarning, match="prompt: cut to the 24 tokens"):
            inputs = adapter.preprocess(observation)
        assert text_of(adapter, observation) == TASK + "\n"
        assert torch.equal(inputs["tokens"], recorded["pre.observation.language.tokens"])
        assert torch.equal(inputs["token_mask"], recorded["pre.observation.language.attention_mask"])
        assert torch.equal(inputs["state"][:, :7], recorded["pre.observation.state"])
        assert inputs["state"].shape == (1, 32) and not inputs["state"][:, 7:].any()
        latents = np.pad(recorded["post.in.action"].numpy()[0], ((0, 0), (0, 25)))
        assert np.array_equal(adapter.postprocess(latents, observation), recorded["post.out.action"].numpy()[0])

    def test_a_newline_is_added_only_where_there_is_none(self, adapter):
        assert text_of(adapter, replace(self.make_observation(0), prompt="go\n")) == "go\n"

    def test_the_state_joins_the_prefix_as_its_last_token(self, adapter):
        inputs = recorded_inputs(adapter, tensors("pi0", "inputs"))
        before = adapter.encode_prefix(inputs)
        after = adapter.encode_prefix({**inputs, "state": inputs["state"] + 1})
        assert before.keys_values[0].k.shape == (2, 73, 1, 16) and before.key_mask.shape == (2, 83)
        for one, other in zip(before.keys_values, after.keys_values, strict=True):
            assert torch.equal(one.v[:, :-1], other.v[:, :-1]) and not torch.equal(one.v[:, -1], other.v[:, -1])


def test_openpi_cleans_the_prompt_and_uses_its_epsilon_both_ways(tmp_path):
    adapter, observation = Pi0.load(openpi_checkpoint("pi0", tmp_path), CPU), make_observation(0, CAMERAS, prompt=TASK)
    assert text_of(adapter, observation) == "pick up the red  block\n"
    statistics = {key: value.double().numpy() for key, value in tensors("pi0", UNNORMALISER).items()}
    mean, std = statistics["observation.state.mean"], statistics["observation.state.std"] + 1e-6
    expected = ((observation.state - mean) / std).astype(np.float32)
    assert np.array_equal(adapter.preprocess(observation)["state"][0, :7].numpy(), expected)
    latents = np.ones((10, 32), np.float32)
    expected = (statistics["action.std"] + 1e-6 + statistics["action.mean"]).astype(np.float32)
    np.testing.assert_allclose(adapter.postprocess(latents, observation), np.tile(expected, (10, 1)), rtol=1e-6)


def test_openpi_deltas_are_added_to_the_raw_state(tmp_path):
    folder = openpi_checkpoint("pi0", tmp_path)
    options = replace(Pi0.load(folder, CPU).options, delta_mask=(2, -1, 1))
    adapter, observation = Pi0.load(folder, CPU, options), make_observation(0, CAMERAS)
    assert [feature.mode == "relative" for feature in adapter.spec.action] == [True, True, False, True] + 3 * [False]
    plain = Pi0.load(folder, CPU)
    latents = np.random.default_rng(0).normal(0, 1, (10, 32)).astype(np.float32)
    moved = adapter.postprocess(latents, observation) - plain.postprocess(latents, observation)
    expected = np.where([True, True, False, True, False, False, False], observation.state, 0)
    np.testing.assert_allclose(moved, np.tile(expected, (10, 1)), atol=1e-6)
    encoded = adapter.encode_actions(adapter.postprocess(latents, observation), observation)
    np.testing.assert_allclose(encoded[:, :7], latents[:, :7], atol=1e-5)
