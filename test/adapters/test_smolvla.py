"""Guards against: a SmolVLA whose numbers are not lerobot's, a prompt or frame prepared another way, image tokens left
out where a checkpoint was trained with them, and shortcuts of the runtime that change the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from adapter_contract import sample
from camera_policy import CPU, CameraPolicyTests
from pi_goldens import MODELS, edit_json, tensors

from phyai_adapters._deployment import Options, read_options
from phyai_adapters._smolvla import FULL, SmolNetwork
from phyai_adapters.smolvla import SmolVla


def load(folder=MODELS / "smolvla", **options):
    """The fixture's checkpoint with other options."""
    return SmolVla.load(folder, CPU, replace(read_options(folder), **options))


def chunk(adapter, **more):
    recorded = tensors("smolvla", "inputs")
    inputs = {**adapter.recorded_inputs(recorded), **more}
    return sample(adapter, adapter.encode_prefix(inputs), recorded["noise"])


@pytest.mark.filterwarnings("ignore:prompt. cut")
class TestSmolVla(CameraPolicyTests):
    kind, stages = "smolvla", 49

    def test_velocity_at_recorded_latents_is_within_1e_5(self, adapter):
        recorded = tensors("smolvla", "intermediates")
        prefix = adapter.encode_prefix(adapter.recorded_inputs(tensors("smolvla", "inputs")))
        for step in range(10):
            velocity = adapter.denoise_step(prefix, recorded[f"step.{step}.x_t"], torch.full((2, 8), step / 10))
            torch.testing.assert_close(-velocity, recorded[f"step.{step}.v_t"], atol=1e-5, rtol=0)

    def test_tokens_around_images(self, folder):
        edit_json(folder / "config.json", add_image_special_tokens=True, prefix_length=40)
        self.refused(folder, r"image_tokens: the tokenizer has no <fake_token_around_image>")
        adapter = load(folder, image_tokens=(301, 302))
        recorded = tensors("smolvla", "outputs")["action_chunk_special_tokens_prefix40"]
        torch.testing.assert_close(chunk(adapter)[..., :6], recorded, atol=1e-4, rtol=0)

    def test_the_prompt_is_tokenised_as_upstream_does(self, adapter):
        recorded = tensors("smolvla", "processor_io")
        obs = replace(self.make_observation(0), prompt="pick_up the\nred  block ")
        inputs = adapter.preprocess(obs)
        assert torch.equal(inputs["tokens"], recorded["pre.observation.language.tokens"])
        assert torch.equal(inputs["token_mask"], recorded["pre.observation.language.attention_mask"])
        with pytest.warns(UserWarning, match="cut to the 12 tokens of training"):
            adapter.preprocess(replace(obs, prompt="put the cup on the table"))

    def test_a_longer_padding_gives_the_same_chunk(self, adapter):
        inputs = adapter.preprocess(self.make_observation(0))
        longer = adapter.pad_prompt(inputs, 12)
        assert all(torch.equal(inputs[name], longer[name]) for name in inputs)
        noise, times = self.noise(adapter), torch.zeros(1, 8)
        alone, padded = (
            adapter.denoise_step(adapter.encode_prefix(x), noise, times)
            for x in (inputs, adapter.pad_prompt(inputs, 16))
        )
        torch.testing.assert_close(alone, padded, atol=1e-5, rtol=0)

    def test_padding_of_the_prompt_leaves_no_trace(self, adapter):
        recorded = adapter.recorded_inputs(tensors("smolvla", "inputs"))
        other = torch.where(recorded["token_mask"], recorded["tokens"], 77)
        assert not torch.equal(other, recorded["tokens"])
        torch.testing.assert_close(chunk(adapter, tokens=other), chunk(adapter), atol=1e-6, rtol=0)

    def test_frames_of_a_declared_size_are_resized_on_the_device_with_the_same_result(self):
        adapter = load(frame_sizes={"camera1": (60, 80), "camera2": (60, 80)})
        obs, host = self.make_observation(0), load()
        inputs = adapter.preprocess(obs)
        assert inputs["image.camera1"].dtype == torch.uint8
        images = host.prepare_images(host.preprocess(obs))
        torch.testing.assert_close(adapter.prepare_images(inputs), images, atol=1e-6, rtol=0)
        frame = np.zeros((30, 40, 3), np.uint8)
        with pytest.raises(ValueError, match="frame_sizes declares 60 x 80"):
            adapter.preprocess(replace(obs, images={**obs.images, "camera2": frame}))

    def test_the_number_of_steps_is_an_option(self, adapter):
        assert load(num_denoise_steps=5).spec.num_denoise_steps == 5
        with pytest.raises(ValueError, match="num_denoise_steps is 5; smolvla was loaded for 10"):
            adapter.set_denoise_steps(5)

    def test_bfloat16_stays_near_float32(self, adapter):
        reduced, exact = chunk(load(dtype="bfloat16")), chunk(adapter)
        assert ((reduced - exact).norm() / exact.norm()) < 3e-2

    def test_a_later_action_has_no_influence_on_an_earlier_one(self, adapter):
        recorded = tensors("smolvla", "inputs")
        prefix, times = adapter.encode_prefix(adapter.recorded_inputs(recorded)), torch.zeros(2, 8)
        noise = recorded["noise"].clone()
        before = adapter.denoise_step(prefix, noise, times)
        noise[:, 5:] += 1.0
        after = adapter.denoise_step(prefix, noise, times)
        torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=0)
        assert not torch.allclose(before[:, 5:], after[:, 5:])

    @pytest.mark.parametrize(("entry", "value"), [("attention_mode", "self_attn"), ("num_expert_layers", 8)])
    def test_variants_that_are_not_built_are_named(self, folder, entry, value):
        edit_json(folder / "config.json", **{entry: value})
        self.refused(folder, rf"config.json: {entry} is {value!r}; supported: ")

    def test_the_full_size_network_has_the_published_number_of_parameters(self):
        with torch.device("meta"):
            network = SmolNetwork(FULL, torch.bfloat16)
        count = sum(parameter.numel() for parameter in network.parameters())
        assert count == sum(target.numel() for target in network.targets().values())
        width, mlp = FULL.vlm.width, FULL.vlm.mlp_width
        never_read = FULL.vocab * width + 2 * width * width + 3 * width * mlp  # language head, behind the last keys
        assert round((count + never_read) / 1e6) == 450

    def test_a_tokenizer_must_be_there(self, folder):
        with pytest.raises(ValueError, match=r"tokenizer: .* has none of"):
            SmolVla.load(folder, CPU, Options(rate_hz=30.0))
