"""Guards against: a Diffusion Policy whose numbers are not lerobot's, with either sampler; rows of the past executed as
if they were to come; a history taken the wrong way round; settings of the scheduler taken for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from camera_policy import CPU, CameraPolicyTests
from pi_goldens import MODELS, edit_json, edit_tensors, tensors

from phyai_adapters._camera_policy import PREPARED
from phyai_adapters._deployment import read_options
from phyai_adapters._diffusion_solver import signal_shares
from phyai_adapters.diffusion import Diffusion


def load(folder, **options):
    return Diffusion.load(folder, CPU, replace(read_options(folder), **options))


class TestDiffusion(CameraPolicyTests):
    kind, stages = "diffusion", 6

    @pytest.mark.parametrize("count", [10, 100])
    def test_ddpm_with_recorded_noise(self, folder, count):
        edit_json(folder / "config.json", noise_scheduler_type="DDPM", num_inference_steps=count)
        adapter, recorded = load(folder), tensors("diffusion", "intermediates")
        inputs = tensors("diffusion", "inputs")
        noise = torch.cat((inputs["noise"], recorded[f"ddpm{count}.step_noise"].transpose(0, 1).flatten(1, 2)), dim=1)
        assert noise.shape[1:] == adapter.spec.noise_shape == (count * 16, 2)
        found = adapter.sample(adapter.encode_prefix(adapter.recorded_inputs(inputs)), noise)
        expected = tensors("diffusion", "outputs")[f"ddpm{count}.full_horizon"]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)

    def test_the_schedule_is_upstreams(self, adapter):
        recorded = tensors("diffusion", "intermediates")["alphas_cumprod(squaredcos_cap_v2,100)"]
        torch.testing.assert_close(signal_shares(adapter.config), recorded, atol=1e-7, rtol=0)

    def test_ten_ticks_of_upstreams_action_queue(self, adapter):
        """A chunk at tick 0, whose history begins with a copy, and one at tick 8."""
        inputs, rows = tensors("diffusion", "inputs"), []
        states, images = inputs["select_action.states"][:, 0], inputs["select_action.images_f16"][:, 0].float()
        for start, ticks in ((0, 8), (8, 2)):
            pair = [max(start - 1, 0), start]
            prefix = adapter.encode_prefix({PREPARED + "image": images[pair][None], "state": states[pair][None]})
            rows.append(adapter.predict(prefix, inputs["noise"][:1])[0, :ticks])
        expected = tensors("diffusion", "outputs")["select_action.10steps(ddim10)"][:, 0]
        torch.testing.assert_close(torch.cat(rows), expected, atol=1e-4, rtol=0)

    def test_the_history_goes_in_oldest_first_and_is_made_up_from_the_oldest(self, adapter):
        old, older, new = (self.make_observation(seed) for seed in range(3))
        pair = adapter.preprocess(replace(new, history=(older, old)))
        assert adapter.spec.observation_steps == 2 and pair["image.image"].shape == (1, 2, 96, 96, 3)
        np.testing.assert_array_equal(pair["image.image"][0, 0], old.images["image"])
        np.testing.assert_allclose(pair["state"][0, 1], adapter.deployment.state.forward(new.state))
        alone, copied = adapter.preprocess(new), adapter.preprocess(replace(new, history=(new,)))
        assert all(torch.equal(alone[name], copied[name]) for name in alone)
        with pytest.raises(ValueError, match="state: "):
            adapter.preprocess(replace(new, history=(replace(old, state=old.state[:1]),)))

    def test_a_chunk_is_all_that_is_still_to_be_executed_unless_less_is_wanted(self, adapter):
        folder = MODELS / "diffusion"
        assert load(folder, action_horizon=None).spec.action_horizon == 15 and adapter.spec.action_horizon == 8
        with pytest.raises(ValueError, match="action_horizon: 16 rows wanted; a sample has 15"):
            load(folder, action_horizon=16)
        assert adapter.spec.rtc_modes == ("none",) and adapter.spec.num_denoise_steps == 0

    def test_the_number_of_steps_is_an_option(self, folder):
        assert load(folder, num_denoise_steps=5).solver.steps.tolist() == [80, 60, 40, 20, 0]
        with pytest.raises(ValueError, match="num_denoise_steps: 101 given; allowed are 1 to 100"):
            load(folder, num_denoise_steps=101)

    def test_an_encoder_for_each_camera(self, folder):
        """Files number the encoders then; the one camera here sees what the shared encoder sees."""
        edit_json(folder / "config.json", use_separate_rgb_encoder_per_camera=True)

        def split(weights):
            return {key.replace("rgb_encoder.", "rgb_encoder.0."): weight for key, weight in weights.items()}

        edit_tensors(folder / "model.safetensors", split)
        adapter, shared = load(folder), load(MODELS / "diffusion")
        inputs = adapter.preprocess(self.make_observation(0))
        assert len(adapter.report.loaded) == len(tensors("diffusion", "model"))
        torch.testing.assert_close(adapter.encode_prefix(inputs), shared.encode_prefix(inputs))

    @pytest.mark.parametrize(
        ("entry", "value"),
        [
            ("prediction_type", "v_prediction"),
            ("beta_schedule", "scaled_linear"),
            ("noise_scheduler_type", "DPM"),
            ("use_group_norm", False),
            ("resize_shape", [64, 64]),
        ],
    )
    def test_variants_that_are_not_built_are_named(self, folder, entry, value):
        edit_json(folder / "config.json", **{entry: value})
        self.refused(folder, rf"config.json: {entry} is .*; supported: ")
