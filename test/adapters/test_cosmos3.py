"""Guards against: a world-action model whose numbers are not upstream's; given frames, rows or frozen rows that move;
padding of the prompt that counts; guidance the wrong way round; cameras, gripper or words in another order than the
policy was trained with."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from adapter_contract import AdapterContract
from pi_goldens import MODELS, edit_json, tensors

from phyai_adapters import load_adapter
from phyai_adapters._deployment import read_options
from phyai_adapters._unipc import UniPc, exported_sigmas, flow_sigmas, karras_sigmas
from phyai_adapters.cosmos3 import Cosmos3
from phyai_adapters.fixtures import trace_recording
from phyai_core.engine import Engine
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Leftover, Observation
from phyai_core.verification import Tolerance, check_stages, read_recording

CPU = torch.device("cpu")
FOLDER = MODELS / "cosmos3"
KEYS = ("wrist_image_left", "exterior_image_1_left", "exterior_image_2_left")


@cache
def loaded() -> Cosmos3:
    return load_adapter("cosmos3", FOLDER, CPU)


def load(folder=FOLDER, **options) -> Cosmos3:
    return Cosmos3.load(folder, CPU, replace(read_options(FOLDER), **options))


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "cosmos3"
    shutil.copytree(FOLDER, target, ignore=shutil.ignore_patterns("*puts.safetensors", "*intermediates*"))
    return target


class TestCosmos3(AdapterContract):
    @pytest.fixture
    def adapter(self):
        return loaded()

    def make_observation(self, seed: int) -> Observation:
        rng = np.random.default_rng(seed)
        frames = {
            key: rng.integers(0, 256, (72 - 36 * bool(i), 128 - 64 * bool(i), 3), np.uint8)
            for i, key in enumerate(KEYS)
        }
        state = rng.uniform(-1, 1, 8).astype(np.float32)
        return Observation(0, frames, state, np.zeros(8, np.float32), prompt="lift the cube" + "!" * seed)

    def test_every_recorded_sample_is_reproduced(self, adapter):
        recording = read_recording(FOLDER)
        checks = check_stages(
            trace_recording(adapter, recording.inputs, CPU), recording.stages, Tolerance(absolute=1e-5)
        )
        assert [check for check in checks if not check.ok] == []
        assert {check.name for check in checks} == {*recording.stages, "droid_state.action (engine)"}

    def test_states_before_the_present_one_come_from_the_history(self):
        """The recorded sample with three of them, by the adapter."""
        adapter, recorded = load(history=3), tensors("cosmos3", "droid_inputs")
        start = recorded["droid_hist3_state.action_init"][..., :8]
        rows = start[0, :4].numpy().copy()
        rows[:, -1] = 1.0 - rows[:, -1]
        seen = [replace(self.make_observation(0), state=row) for row in rows]
        inputs = adapter.preprocess(replace(seen[-1], history=tuple(seen[:-1])))
        assert adapter.spec.observation_steps == 4
        torch.testing.assert_close(inputs["state"], start[:, :4], atol=1e-6, rtol=0)
        given = adapter.recorded_inputs({**tensors("cosmos3", "inputs"), "droid_state.action_init": start})
        chunk = adapter.predict(adapter.encode_prefix({**given, "state": inputs["state"]}), given["noise"])
        expected = tensors("cosmos3", "droid_outputs")["droid_hist3_state.action"]
        torch.testing.assert_close(chunk, expected, atol=1e-4, rtol=0)
        alone = adapter.preprocess(seen[-1])["state"]
        assert torch.equal(alone, alone[:, -1:].expand_as(alone))

    def test_padding_of_the_prompt_changes_nothing(self, adapter):
        inputs, noise = adapter.preprocess(self.make_observation(0)), self.noise(adapter)
        real = inputs["token_mask"][0]
        bare = {name: inputs[name][:, real] for name in ("tokens", "token_mask")}
        longer = adapter.pad_prompt(inputs, 700)
        whole, cut, more = (
            adapter.predict(adapter.encode_prefix(given), noise) for given in (inputs, {**inputs, **bare}, longer)
        )
        torch.testing.assert_close(whole, cut, atol=1e-4, rtol=0)
        torch.testing.assert_close(whole, more, atol=1e-4, rtol=0)
        kept = adapter.predict(
            adapter.encode_prefix({**inputs, "prompt_embedding": adapter.embed_prompt(inputs)}), noise
        )
        assert torch.equal(kept, whole)

    def test_frozen_rows_are_reached_and_the_others_follow(self, adapter):
        """Through the engine, as a running chunk would be continued."""
        engine, spec, noise = Engine(adapter, CPU), adapter.spec, self.noise(adapter)[0].numpy()
        rows = np.random.default_rng(3).normal(0, 1, (6, 8)).astype(np.float32)
        leftover = Leftover(rows, rows, delay=3, execution_horizon=2)

        def infer(**config):
            tables = tables_for(RtcConfig(**config), spec, leftover)
            return engine.infer(self.make_observation(0), tables, noise).latent

        free, hard, partly = infer(mode="none"), infer(mode="hard"), infer(mode="hard", exclude=("gripper",))
        np.testing.assert_allclose(hard[:3], rows[:3], atol=1e-6)
        np.testing.assert_allclose(partly[:3, :7], rows[:3, :7], atol=1e-6)
        assert np.abs(partly[:3, 7] - rows[:3, 7]).min() > 1e-3
        assert np.abs(hard[3:] - free[3:]).max() > 1e-3 and np.abs(hard[3:]).max() < 10

    def test_a_leftover_that_is_what_it_would_do_anyway_changes_little(self, adapter):
        """The rows of a chunk, frozen: the straight line is the sampler's own path, but for the curve of the flow."""
        noise, prefix = self.noise(adapter), adapter.encode_prefix(adapter.preprocess(self.make_observation(0)))
        free = adapter.predict(prefix, noise)
        frozen = torch.zeros_like(free, dtype=torch.bool)
        assert torch.equal(adapter.predict_onto(prefix, noise, free, frozen), free)
        frozen[:, :3] = True
        tied = adapter.predict_onto(prefix, noise, free, frozen)
        other = adapter.predict_onto(prefix, noise, -free, frozen)
        assert (tied - free)[:, 3:].norm() < 0.5 * (other - free)[:, 3:].norm()

    def test_the_gripper_counts_the_other_way_and_joints_are_as_they_are(self, adapter):
        obs = self.make_observation(0)
        state = adapter.preprocess(obs)["state"][0, 0].numpy()
        np.testing.assert_allclose(state, [*obs.state[:7], 1.0 - obs.state[7]])
        np.testing.assert_allclose(adapter.postprocess(state[None], obs)[0], obs.state, atol=1e-6)
        np.testing.assert_allclose(adapter.encode_actions(obs.state[None], obs)[0], state, atol=1e-6)

    def test_without_guidance_the_network_runs_once(self):
        adapter = load(guidance=1.0)
        inputs = adapter.preprocess(self.make_observation(0))
        assert adapter.spec.branches == 1 and adapter.embed_prompt(inputs).shape[1] == 1
        guided = loaded().predict(loaded().encode_prefix(inputs), self.noise(adapter))
        assert not torch.allclose(adapter.predict(adapter.encode_prefix(inputs), self.noise(adapter)), guided)

    def test_a_long_task_is_cut_and_told_and_keeps_its_end(self, adapter):
        with pytest.warns(UserWarning, match=r"prompt: cut to \d+ tokens"):
            tokens = adapter.preprocess(replace(self.make_observation(0), prompt="x" * 900))["tokens"]
        assert tokens.shape == (1, 640) and tokens[0, -2:].tolist() == [310, 311]


def test_the_sampler_lands_on_a_straight_flow_exactly():
    noise, clean = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    solver, x = UniPc(flow_sigmas(6, 3.0)), noise
    for index in range(6):
        (x,) = solver.step(index, (x,), (noise - clean,))
    torch.testing.assert_close(x, clean, atol=1e-3, rtol=0)  # sigma starts a little below 1


def test_schedules_of_the_scheduler_file(folder):
    file = folder / "scheduler" / "scheduler_config.json"
    with pytest.raises(ValueError, match=r"scheduler_config\.json does not exist"):
        load(folder, schedule="exported")
    file.parent.mkdir()
    edit_json(file, use_karras_sigmas=True, sigma_min=0.147, sigma_max=200.0)
    assert torch.equal(load(folder, schedule="exported").sampler.sigmas, karras_sigmas(4))
    shifted = load(folder, schedule="exported", flow_shift=10.0, num_denoise_steps=6).sampler.sigmas
    assert torch.equal(shifted, exported_sigmas({"use_flow_sigmas": True, "flow_shift": 10.0}, 6)) and len(shifted) == 7
    edit_json(file, use_karras_sigmas=False)
    with pytest.raises(
        ValueError, match=r"scheduler_config.json: use_karras_sigmas and use_flow_sigmas are both false"
    ):
        load(folder, schedule="exported")
    assert torch.equal(load(flow_shift=3.0).sampler.sigmas, flow_sigmas(4, 3.0))


def test_one_frame_is_encoded_as_the_first_of_a_video():
    adapter, video = loaded(), tensors("cosmos3/vae", "inputs")["video"]
    latent = adapter.network.encoder(video[:, :, 0])
    expected = tensors("cosmos3/vae", "outputs")
    torch.testing.assert_close(latent, expected["encode1.mode"][:, :, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        adapter.units.normalise(latent), expected["encode9.normalized"][:, :, 0], atol=1e-5, rtol=0
    )


def test_videos_are_decoded_as_upstream_does_and_in_tiles():
    adapter, expected = load(video_decoder=True), tensors("cosmos3/vae", "outputs")
    latents, decoder = expected["encode9.mode"], adapter.network.decoder
    torch.testing.assert_close(adapter.units.restore(expected["encode9.normalized"]), latents, atol=1e-5, rtol=0)
    torch.testing.assert_close(decoder(latents), expected["decode3"], atol=1e-5, rtol=0)
    torch.testing.assert_close(decoder(latents[:, :, :1]), expected["decode1"], atol=1e-5, rtol=0)
    torch.testing.assert_close(decoder.decode_tiled(latents, 4, 1), expected["decode3"], atol=1e-5, rtol=0)
    flat = torch.zeros(1, 4, 2, 5, 7)
    torch.testing.assert_close(decoder.decode_tiled(flat, 3, 1).mean(), decoder(flat).mean(), atol=0.05, rtol=0)
    with pytest.raises(ValueError, match="overlap: 3 latents given; allowed are 0 to 2 with tiles of 3"):
        decoder.decode_tiled(flat, 3, 3)


def test_the_predicted_video_can_be_looked_at():
    adapter, obs = load(video_decoder=True), TestCosmos3().make_observation(0)
    noise = TestCosmos3().noise(adapter)
    video = adapter.predict_video(obs, noise, tile=None)
    assert video.shape == (9, 80, 96, 3) and video.dtype == np.uint8
    assert adapter.predict_video(obs, noise, tile=4).shape == video.shape
    with pytest.raises(ValueError, match=r"video_decoder: not loaded; write .*phyai.json"):
        loaded().predict_video(obs, noise)


def test_bfloat16_stays_near_float32():
    adapter, obs = load(dtype="bfloat16"), TestCosmos3().make_observation(0)
    inputs, noise = adapter.preprocess(obs), TestCosmos3().noise(adapter)
    rounded, exact = (policy.predict(policy.encode_prefix(inputs), noise) for policy in (adapter, loaded()))
    assert rounded.dtype == torch.float32
    assert (rounded - exact).norm() < 5e-2 * exact.norm()
