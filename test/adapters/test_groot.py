"""Guards against: a GR00T whose numbers are not upstream's; another robot's encoders or statistics; relative actions
that count from the wrong joint; chunks shorter than the network's; its own way to continue a chunk done differently."""

from __future__ import annotations

import json
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
from phyai_adapters.description import describe_checkpoint
from phyai_adapters.detection import detect_adapter
from phyai_adapters.fixtures import trace_recording
from phyai_adapters.groot import Groot
from phyai_core.engine import plain_tables
from phyai_core.rtc import RtcConfig, build_tables
from phyai_core.runner import Runner
from phyai_core.slot import Job
from phyai_core.types import Leftover, Observation
from phyai_core.verification import Tolerance, check_stages, read_recording

CPU = torch.device("cpu")
FOLDER = MODELS / "groot_n1_7"


@cache
def loaded():
    return load_adapter("groot", FOLDER, CPU)


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "groot"
    target.mkdir()
    for name in ("model.safetensors", *(file.name for file in FOLDER.glob("*.json"))):
        shutil.copyfile(FOLDER / name, target / name)
    return target


def refused(folder, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_adapter("groot", folder, CPU)


class TestGroot(AdapterContract):
    @pytest.fixture
    def adapter(self):
        return loaded()

    def make_observation(self, seed: int) -> Observation:
        rng = np.random.default_rng(seed)
        frames = {key: rng.integers(0, 256, (60, 80, 3), np.uint8) for key in ("front", "wrist")}
        state = rng.uniform(-1, 1, 4).astype(np.float32)
        return Observation(0, frames, state, np.zeros(4, np.float32), prompt=f"Task no. {seed}!")

    def test_every_recorded_stage_is_reproduced(self, adapter):
        recording = read_recording(FOLDER)
        checks = check_stages(
            trace_recording(adapter, recording.inputs, CPU), recording.stages, Tolerance(absolute=1e-5)
        )
        assert [check for check in checks if not check.ok] == [] and len(checks) == 15

    def test_its_own_way_to_continue_a_chunk_is_the_mode_ramp(self, adapter):
        """Upstream's last four rows of the chunk before are the leftover; one is frozen; the rate is 6."""
        recorded = tensors("groot_n1_7", "inputs")
        inputs, leftovers = adapter.recorded_inputs(recorded), recorded["rtc_prev_action"][:, -4:].numpy()
        rows = [{name: tensor[row : row + 1] for name, tensor in inputs.items()} for row in range(2)]
        config = RtcConfig("ramp", ramp_rate=6.0)
        jobs = [
            Job(rows[i], build_tables(config, 6, 4, 10, Leftover(leftovers[i], leftovers[i], 1, 2)), noise)
            for i, noise in enumerate(recorded["noise"])
        ]
        latents, _ = Runner(adapter, CPU, rows[0], (2,)).run(jobs)
        expected = tensors("groot_n1_7", "outputs")["action_pred_rtc(overlap4,frozen1,ramp6)"]
        np.testing.assert_allclose(latents, expected, atol=1e-5)

    def test_padding_of_the_prompt_changes_nothing(self, adapter):
        """Upstream runs one robot without padding."""
        padded = adapter.preprocess(self.make_observation(0))
        real = padded["text_mask"][0]
        bare = {name: padded[name][..., real] for name in ("text", "text_mask", "feature_mask", "positions")}
        noise, times = self.noise(adapter), torch.zeros(1, 6)
        whole, cut = (
            adapter.denoise_step(adapter.encode_prefix(inputs), noise, times) for inputs in (padded, {**padded, **bare})
        )
        torch.testing.assert_close(whole, cut, atol=1e-5, rtol=0)

    def test_the_prompt_is_cleaned_and_put_into_the_template(self, adapter):
        inputs = adapter.preprocess(self.make_observation(7))
        text = "".join(chr(i - 3) if i < 300 else f"<{i}>" for i in inputs["text"][0][inputs["text_mask"][0]].tolist())
        picture = "<392>" + "<390>" * 6 + "<393>"  # 64 x 85 pixels become 2 x 3 tokens
        assert text == f"<|im_start|>user\n{picture * 2}task no 7<|im_end|>\n"

    def test_actions_relative_to_joints_and_ranges_per_row(self, adapter):
        obs, latents = self.make_observation(0), np.zeros((6, 10), np.float32)
        latents[:, 0] = 1.0
        latents[:, 3] = -5.0  # clipped
        actions = adapter.postprocess(latents, obs)
        assert [f.mode for f in adapter.spec.action] == ["relative"] * 3 + ["absolute"]
        np.testing.assert_allclose(actions[:, 0], obs.state[0] + 0.1 + 0.05 * np.arange(6), atol=1e-6)
        np.testing.assert_allclose(actions[:, 1:], [[*obs.state[1:3], 0.0]] * 6, atol=1e-6)
        encoded = adapter.encode_actions(actions, obs)
        np.testing.assert_allclose(encoded[:, :4], [[1, 0, 0, -1]] * 6, atol=1e-5)
        assert encoded.shape == (6, 10) and not encoded[:, 4:].any()

    def test_a_state_outside_its_range_is_clipped(self, adapter):
        state = adapter.deployment.state.forward(np.float32([2.0, -9.0, 0.0, 0.25]))
        np.testing.assert_allclose(state, [1.0, -1.0, 0.0, -0.5])

    def test_a_robot_with_a_shorter_chunk_gives_the_same_rows(self, adapter, folder):
        edit_json(folder / "phyai.json", embodiment="short_arm")
        short = load_adapter("groot", folder, CPU)
        assert (short.spec.action_horizon, short.spec.latent_dim, short.deployment.embodiment_id) == (4, 20, 3)
        inputs, noise = adapter.preprocess(self.make_observation(0)), self.noise(adapter)
        prefix = adapter.encode_prefix({**inputs, "embodiment": torch.tensor([3])})
        whole = adapter.denoise_step(prefix, noise, torch.zeros(1, 6))
        folded = short.fold(torch.nn.functional.pad(noise, (0, 0, 0, 2)))
        velocity = short.denoise_step(prefix, folded, torch.zeros(1, 4))
        torch.testing.assert_close(short.unfold(velocity)[:, :6], whole)
        assert not short.unfold(velocity)[:, 6:].any()


def test_the_embodiment_has_to_be_chosen(folder):
    edit_json(folder / "phyai.json", embodiment=None)
    refused(folder, r"embodiment: nothing is chosen; .* has new_embodiment, short_arm")
    edit_json(folder / "phyai.json", embodiment="dog")
    refused(folder, "embodiment: 'dog' is unknown")


def test_what_is_missing_is_named(folder):
    edit_json(folder / "phyai.json", frame_sizes=None)
    refused(folder, "frame_sizes: the sizes of front, wrist are not known")
    edit_json(folder / "phyai.json", frame_sizes={"front": [60, 80], "wrist": [60, 60]})
    refused(folder, "frame_sizes: .* differ; supported: one size")
    edit_json(folder / "phyai.json", frame_sizes={"front": [60, 80], "wrist": [60, 80]}, image_tokens=None)
    refused(folder, "image_tokens: the tokenizer has no")
    edit_json(folder / "phyai.json", rate_hz=None, image_tokens=[392, 390, 393])
    refused(folder, "rate_hz: .* does not say its rate")
    (folder / "statistics.json").unlink()
    edit_json(folder / "phyai.json", rate_hz=20)
    refused(folder, r"statistics.json does not exist")


def test_what_is_not_built_is_named(folder):
    file = folder / "processor_config.json"
    content = file.read_text()
    changed = json.loads(content)
    config = changed["processor_kwargs"]["modality_configs"]["new_embodiment"]
    config["action"]["action_configs"][0]["type"] = "EEF"
    file.write_text(json.dumps(changed))
    refused(folder, "actions arm are poses relative to the hand; supported: joints")
    changed = json.loads(content)
    changed["processor_kwargs"]["modality_configs"]["new_embodiment"]["video"]["delta_indices"] = [-1, 0]
    file.write_text(json.dumps(changed))
    refused(folder, r"video looks at \[-1, 0\]; supported: the newest only")


def test_other_versions_are_refused_with_what_to_do(folder):
    edit_json(folder / "config.json", model_type="gr00t_n1_5")
    refused(folder, r"model_type is 'gr00t_n1_5'; supported: 'Gr00tN1d7' .*convert or fine-tune")
    with pytest.raises(ValueError, match=r"is GR00T N1\.5; supported is N1\.7: fine-tune"):
        detect_adapter(folder)


def test_it_is_recognised_and_described():
    assert detect_adapter(FOLDER) == "groot"
    found = describe_checkpoint(FOLDER, "groot")
    assert found.layout == "Isaac-GR00T" and found.spec == loaded().spec
    assert found.parameters == sum(parameter.numel() for parameter in loaded().network.parameters())


def test_bfloat16_stays_near_float32():
    adapter = Groot.load(FOLDER, CPU, replace(read_options(FOLDER), dtype="bfloat16"))
    recorded = tensors("groot_n1_7", "inputs")
    rows = [{k: v[i : i + 1] for k, v in adapter.recorded_inputs(recorded).items()} for i in range(2)]
    jobs = [Job(row, plain_tables(adapter.spec), noise) for row, noise in zip(rows, recorded["noise"], strict=True)]
    latents, _ = Runner(adapter, CPU, rows[0], (2,)).run(jobs)
    expected = tensors("groot_n1_7", "outputs")["action_pred"].numpy()
    assert np.linalg.norm(latents - expected) < 5e-2 * np.linalg.norm(expected)
