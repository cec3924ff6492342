"""Guards, for pi0.5, against: a prompt whose state bins differ from training, time tables of another order than the
norms meet them, key names of converted checkpoints, and weights kept in memory that nothing reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pi_goldens import (
    CAMERAS,
    MODELS,
    UNNORMALISER,
    copy_checkpoint,
    edit_tensors,
    make_observation,
    openpi_checkpoint,
    tensors,
)
from pi_parity import CPU, PiParity
from torch.nn.functional import silu

from phyai_adapters._flow_time import model_times, time_features
from phyai_adapters._paligemma import LANGUAGE, LM_HEAD
from phyai_adapters._processing import state_prompt
from phyai_adapters._trace import recorded_inputs
from phyai_adapters.pi05 import Pi05

TASK = "pick_up the\nred  block "


class TestPi05(PiParity):
    kind = "pi05"

    def expected_embedding(self, adapter, latents, row):
        weights = tensors("pi05", "model")
        return latents @ weights["model.action_in_proj.weight"].T + weights["model.action_in_proj.bias"]

    def test_processor_gives_upstreams_tokens_and_actions_bit_by_bit(self, adapter):
        recorded = tensors("pi05", "processor_io")
        state = recorded["raw.observation.state"].numpy()
        observation = replace(self.make_observation(0), state=state, prompt=TASK)
        with pytest.warns(UserWarning, match="prompt: cut to the 24 tokens"):
            inputs = adapter.preprocess(observation)
        assert torch.equal(inputs["tokens"], recorded["pre.observation.language.tokens"])
        assert torch.equal(inputs["token_mask"], recorded["pre.observation.language.attention_mask"])
        normalised = adapter.deployment.state.forward(state)
        assert np.array_equal(normalised, recorded["pre.observation.state"].numpy()[0])
        expected = "Task: pick up the red  block, State: 135 255 -1 30 240 -1 138;\nAction: "
        assert state_prompt(TASK, normalised) == expected
        latents = np.pad(recorded["post.in.action"].numpy()[0], ((0, 0), (0, 25)))
        assert np.array_equal(adapter.postprocess(latents, observation), recorded["post.out.action"].numpy()[0])

    def test_modulations_are_those_of_the_files_weights_in_the_order_of_the_norms(self, adapter):
        weights = {key: value.double() for key, value in tensors("pi05", "model").items()}
        x = time_features(model_times(10, accumulate=False), 32, (4e-3, 4.0))
        for name in ("time_mlp_in", "time_mlp_out"):
            x = silu(x @ weights[f"model.{name}.weight"].T + weights[f"model.{name}.bias"])
        recorded = tensors("pi05", "intermediates")["suffix.step0.adarms_cond"]
        torch.testing.assert_close(x[:1].expand(2, -1).float(), recorded)
        expert = "model.paligemma_with_expert.gemma_expert.model."
        pair = ("input_layernorm", "post_attention_layernorm")
        norms = [f"layers.{layer}.{norm}" for layer in range(3) for norm in pair]
        for table, norm in zip(adapter.time_tables, [*norms, "norm"], strict=True):
            expected = x @ weights[f"{expert}{norm}.dense.weight"].T + weights[f"{expert}{norm}.dense.bias"]
            torch.testing.assert_close(table.double(), expected, atol=1e-5, rtol=1e-5)

    def test_the_weights_behind_the_tables_are_released(self, adapter):
        assert adapter.network.conditioning is None
        assert not [name for name, _ in adapter.network.named_parameters() if "dense" in name]


def test_features_are_float64_sines_of_the_recorded_periods():
    features = time_features(torch.tensor([1.0, 0.55]), 32, (4e-3, 4.0))
    recorded = tensors("pi05", "intermediates")["time_embedding.t=[1.0,0.55]"]
    torch.testing.assert_close(features, recorded, atol=1e-15, rtol=0)


def test_openpi_accumulates_time_in_float32_and_ends_clean():
    exact, accumulated = model_times(10, accumulate=False), model_times(10, accumulate=True)
    assert exact[5] == 0.5 and accumulated[5] == np.float32(0.49999991)
    assert exact[10] == accumulated[10] == 0.0


def test_state_bins_at_and_beyond_the_edges():
    prompt = state_prompt("a", np.array([-1.01, -1.0, -0.9999, 0.0, 0.999, 1.0, 7.0]))
    assert prompt == "Task: a, State: -1 0 0 128 255 255 255;\nAction: "


def test_openpi_normalises_by_quantiles_in_float64(tmp_path):
    adapter, observation = (
        Pi05.load(openpi_checkpoint("pi05", tmp_path), CPU),
        make_observation(0, CAMERAS, prompt=TASK),
    )
    statistics = tensors("pi05", UNNORMALISER)
    low, high = (statistics[f"observation.state.{name}"].double().numpy() for name in ("q01", "q99"))
    expected = (observation.state - low) / (high - low + 1e-6) * 2.0 - 1.0
    np.testing.assert_allclose(adapter.deployment.state.forward(observation.state), expected, rtol=1e-14)
    text = bytes(token - 3 for token in adapter.prompt_ids(observation)[1:]).decode()
    assert text == state_prompt(TASK, expected) and adapter.prompt_buckets == (48, 112, 200)


def test_checkpoints_trained_without_state_in_the_prompt_end_with_a_newline(tmp_path):
    folder = openpi_checkpoint("pi05", tmp_path)
    adapter = Pi05.load(folder, CPU, replace(Pi05.load(folder, CPU).options, state_in_prompt=False))
    text = bytes(token - 3 for token in adapter.prompt_ids(make_observation(0, CAMERAS, prompt=TASK))[1:]).decode()
    assert text == "pick up the red  block\n"


def test_names_of_converted_checkpoints_are_understood(tmp_path):
    """No `model.`, no `vision_model.`, pi0's name of the time MLP, a left-over state projection, tied embeddings."""

    def rename(weights):
        renamed = {"state_proj.weight": torch.zeros(32, 32)}
        for name, tensor in weights.items():
            if "embed_tokens" not in name:
                name = name.removeprefix("model.").replace("vision_model.", "").replace("time_mlp", "action_time_mlp")
                renamed[name] = tensor
        return renamed

    folder = copy_checkpoint("pi05", tmp_path)
    edit_tensors(folder / "model.safetensors", rename)
    adapter = Pi05.load(folder, CPU)
    assert adapter.report.tied == ((LANGUAGE + "embed_tokens.weight", LM_HEAD),)
    assert "state_proj.weight" in adapter.report.unused
    inputs = recorded_inputs(adapter, tensors("pi05", "inputs"))
    assert torch.isfinite(adapter.encode_prefix(inputs).keys_values[-1].k).all()
    original = Pi05.load(MODELS / "pi05", CPU)
    assert torch.equal(adapter.time_tables, original.time_tables)
