"""Guards against a checkpoint folder that is not what it seems: wrong kind, no or partial statistics, an unknown
processing step, keys that do not fit, a missing tokenizer. Each must fail before a robot moves, and by name."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pi_goldens import (
    CAMERAS,
    NORMALISERS,
    UNNORMALISER,
    copy_checkpoint,
    edit_json,
    edit_tensors,
    make_observation,
    openpi_checkpoint,
)

from phyai_adapters import load_adapter
from phyai_adapters._deployment import Options, read_options

CPU = torch.device("cpu")


@pytest.fixture(params=["pi0", "pi05"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def folder(kind, tmp_path) -> Path:
    return copy_checkpoint(kind, tmp_path)


def refused(kind: str, folder: Path | None, match: str, device: torch.device = CPU) -> None:
    with pytest.raises(ValueError, match=match):
        load_adapter(kind, folder, device)


def test_no_folder_and_no_weights(kind, tmp_path):
    refused(kind, None, f"{kind} ships no weights; give the folder")
    refused(kind, tmp_path / "nothing", "nothing is not a folder")
    refused(kind, tmp_path, r"has neither model.safetensors nor")


def test_the_other_kind(kind, folder, tmp_path):
    other = {"pi0": "pi05", "pi05": "pi0"}[kind]
    refused(other, folder, f"is a {kind} checkpoint; use the adapter {kind}, not {other}")
    refused(other, openpi_checkpoint(kind, tmp_path), f"is a {kind} checkpoint; use the adapter {kind}")


def test_a_device_that_is_not_there(kind, folder):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    refused(kind, folder, "device: cuda is not available on this machine", torch.device("cuda"))


def test_every_key_is_accounted_for(kind, folder):
    def damage(weights):
        weights["model.action_out_proj.weight"] = weights["model.action_out_proj.weight"][:, :16]
        del weights["model.action_in_proj.bias"]
        return {**weights, "model.adapter.lora_A": torch.zeros(2)}

    edit_tensors(folder / "model.safetensors", damage)
    refused(
        kind,
        folder,
        r"1 missing: action_in_proj.bias. 1 unexpected: adapter.lora_A. "
        r"1 of another shape: action_out_proj.weight is \[32, 16\], wanted \[32, 32\]",
    )


def test_weights_of_another_model(kind, folder):
    edit_tensors(folder / "model.safetensors", lambda _: {"layers.0.weight": torch.zeros(2)})
    refused(kind, folder, "these are not the weights of a pi0 or pi0.5 policy")


def test_empty_statistics_are_named_with_the_way_out(kind, folder):
    low, high = {"pi0": ("mean", "std"), "pi05": ("q01", "q99")}[kind]
    edit_tensors(folder / f"{UNNORMALISER}.safetensors", lambda _: {})
    refused(kind, folder, rf'statistics: action.{low} is missing in .*{UNNORMALISER}.*"statistics": "<file>"')
    edit_tensors(folder / f"{UNNORMALISER}.safetensors", lambda _: {f"action.{low}": torch.zeros(7)})
    refused(kind, folder, f"statistics: action.{high} is missing")
    (folder / f"{UNNORMALISER}.safetensors").unlink()
    refused(kind, folder, f"statistics: action.{low} is missing, .* does not exist")


def test_statistics_of_another_robot_or_with_holes(kind, folder):
    low = {"pi0": "mean", "pi05": "q01"}[kind]
    file, name = folder / f"{NORMALISERS[kind]}.safetensors", f"observation.state.{low}"
    edit_tensors(file, lambda values: {**values, name: torch.zeros(8)})
    refused(kind, folder, rf"statistics: observation.state.{low} in .* must be 7 finite numbers")
    edit_tensors(file, lambda values: {**values, name: torch.full((7,), torch.nan)})
    refused(kind, folder, rf"statistics: observation.state.{low} in .* must be 7 finite numbers")


def test_statistics_can_come_from_elsewhere(kind, folder):
    source = folder / f"{UNNORMALISER}.safetensors"
    source.rename(folder / "mine.safetensors")
    edit_tensors(folder / f"{NORMALISERS[kind]}.safetensors", lambda _: {})
    edit_json(folder / "phyai.json", statistics="mine.safetensors")
    assert load_adapter(kind, folder, CPU).spec.state_dim == 7


def test_a_processing_step_that_is_not_reproduced(kind, folder):
    file = folder / "policy_preprocessor.json"
    steps = json.loads(file.read_text())["steps"]
    edit_json(file, steps=[*steps, {"registry_name": "crop_processor", "config": {}}])
    refused(kind, folder, "the step crop_processor is unknown")
    edit_json(file, steps=[step for step in steps if step["registry_name"] != "normalizer_processor"])
    refused(kind, folder, "the step normalizer_processor is missing")


def test_an_unknown_normalisation_or_a_config_of_another_version(kind, folder):
    edit_json(folder / "config.json", image_resolution=None)
    refused(kind, folder, r"config.json: image_resolution is missing")
    file = folder / "policy_preprocessor.json"
    file.write_text(file.read_text().replace("MEAN_STD", "RANK").replace("QUANTILES", "RANK"))
    edit_json(folder / "config.json", image_resolution=[56, 56])
    refused(kind, folder, "RANK of observation.state is unknown; allowed: MEAN_STD, MIN_MAX, QUANTILES")


def test_the_rate_and_the_tokenizer_must_be_told(kind, folder):
    (folder / "phyai.json").unlink()
    refused(kind, folder, r'rate_hz: .* does not say at which rate .*Write \{"rate_hz": <Hz>\} into phyai.json')
    edit_json(folder / "phyai.json", rate_hz=20)
    refused(kind, folder, "tokenizer: .* has none of tokenizer.model, paligemma_tokenizer.model, tokenizer.json")
    edit_json(folder / "phyai.json", rate_hz=20, tokenizer="mine.model")
    refused(kind, folder, "tokenizer: .*mine.model does not exist")
    (folder / "mine.model").write_bytes(b"no model")
    refused(kind, folder, "tokenizer: .*mine.model")


def test_options_are_checked_by_name(kind, folder):
    for entry, match in (
        ({"speed": 1}, "phyai.json: speed unknown; allowed: rate_hz, tokenizer"),
        ({"rate_hz": 0}, "rate_hz: 0 is out of range"),
        ({"rate_hz": "25"}, "phyai.json: a value has the wrong type"),
        ({"num_denoise_steps": 0}, "num_denoise_steps: 0 is too small"),
        ({"dtype": "int8"}, "dtype: 'int8' is unknown; allowed: float32, bfloat16"),
        ({"rope_inv_freq": "half"}, "rope_inv_freq: 'half' is unknown"),
        ({"cameras": ["front"]}, "cameras: front unknown; the policy has base_0_rgb, left_wrist_0_rgb"),
        ({"cameras": []}, "cameras: none chosen"),
        ({"frame_sizes": {"front": [1, 1]}}, "frame_sizes: front unknown"),
        ({"action_names": ["a"]}, "action_names: 1 names given, the checkpoint has 7 values"),
    ):
        (folder / "phyai.json").write_text(json.dumps({"rate_hz": 25, "tokenizer": "bytes", **entry}))
        refused(kind, folder, match)
    for content, match in (("{", "phyai.json is not JSON"), ("[]", "phyai.json holds no JSON object")):
        (folder / "phyai.json").write_text(content)
        refused(kind, folder, match)


def test_names_rate_and_horizon_reach_the_spec(kind, folder):
    names = [f"joint_{index}" for index in range(7)]
    edit_json(folder / "phyai.json", rate_hz=20, state_names=names, action_names=names, action_horizon=6)
    spec = load_adapter(kind, folder, CPU).spec
    assert [feature.name for feature in spec.action] == [feature.name for feature in spec.state] == names
    assert (spec.dt_s, spec.action_horizon, spec.latent_dim, spec.num_denoise_steps) == (0.05, 6, 32, 10)
    assert [(camera.key, camera.height, camera.width) for camera in spec.cameras] == [(key, 60, 80) for key in CAMERAS]
    assert "trained" not in spec.rtc_modes


def test_a_checkpoint_trained_for_rtc_says_so(kind, folder):
    edit_json(folder / "config.json", rtc_training_max_delay=4)
    spec = load_adapter(kind, folder, CPU).spec
    assert spec.rtc_max_delay == 4 and "trained" in spec.rtc_modes


def test_empty_camera_slots_are_no_cameras(kind, folder):
    features = json.loads((folder / "config.json").read_text())["input_features"]
    features["observation.images.empty_camera_0"] = {"type": "VISUAL", "shape": [3, 480, 640]}
    edit_json(folder / "config.json", input_features=features, empty_cameras=1)
    assert [camera.key for camera in load_adapter(kind, folder, CPU).spec.cameras] == list(CAMERAS)


def relative_steps(folder: Path, names: list[str] | None) -> None:
    for file in (folder / "policy_preprocessor.json", folder / "policy_postprocessor.json"):
        content = json.loads(file.read_text())
        for step in content["steps"]:
            if step["registry_name"] in ("relative_actions_processor", "absolute_actions_processor"):
                step["config"].update(enabled=True, action_names=names)
        file.write_text(json.dumps(content))


def test_relative_actions_are_added_to_the_state_except_grippers(kind, folder):
    plain = load_adapter(kind, folder, CPU)
    relative_steps(folder, [*(f"joint_{index}" for index in range(6)), "Left_Gripper"])
    adapter, observation = load_adapter(kind, folder, CPU), make_observation(0, CAMERAS)
    assert [feature.mode for feature in adapter.spec.action] == ["relative"] * 6 + ["absolute"]
    latents = np.zeros((10, 32), np.float32)
    moved = adapter.postprocess(latents, observation) - plain.postprocess(latents, observation)
    np.testing.assert_allclose(moved[3], [*observation.state[:6], 0.0], atol=1e-6)
    relative_steps(folder, ["joint_0"])
    refused(kind, folder, "action_names has 1 names, the policy has 7 actions")


def test_relative_actions_need_a_state_to_be_relative_to(kind, folder):
    relative_steps(folder, None)
    features = json.loads((folder / "config.json").read_text())["input_features"]
    del features["observation.state"]
    edit_json(folder / "config.json", input_features=features)
    refused(kind, folder, "7 are relative to the state, which has only 0 values")


def test_openpi_folders_that_do_not_say_enough(kind, tmp_path):
    folder = openpi_checkpoint(kind, tmp_path, asset_id="droid")
    statistics = folder / "assets" / "droid" / "norm_stats.json"
    content = statistics.read_text()
    (folder / "assets" / "other").mkdir()
    (folder / "assets" / "other" / "norm_stats.json").write_text(content)
    refused(kind, folder, r"asset_id: .* has several \(droid, other\)")
    edit_json(folder / "phyai.json", asset_id="droid")
    assert load_adapter(kind, folder, CPU).spec.action_dim == 7
    low = {"pi0": "mean", "pi05": "q01"}[kind]
    edit_json(statistics, norm_stats={"state": json.loads(content)["norm_stats"]["state"]})
    refused(kind, folder, rf"statistics: actions.{low} in .* must be finite numbers, it is \[\]")
    statistics.unlink()
    refused(kind, folder, r"statistics: .* has no assets/droid/norm_stats.json")
    statistics.write_text(content)
    (folder / "config.json").unlink()
    refused(kind, folder, r"action_horizon: .* has no config.json that says it")


def test_openpi_statistics_of_padded_vectors_are_cut_to_the_names_given(kind, tmp_path):
    folder = openpi_checkpoint(kind, tmp_path)
    edit_json(folder / "phyai.json", state_names=["a", "b"], action_names=["a", "b"], delta_mask=[1, -1])
    spec = load_adapter(kind, folder, CPU).spec
    assert spec.state_dim == spec.action_dim == 2
    edit_json(folder / "phyai.json", delta_mask=[7])
    refused(kind, folder, r"delta_mask: \[7\] covers 7 values, the policy has 2 actions")


def test_every_option_has_its_default_and_phyai_json_can_set_it(folder):
    (folder / "phyai.json").write_text("{}")
    assert read_options(folder) == Options()
    values = {"rate_hz": 10.0, "cameras": ["a"], "delta_mask": [1], "state_in_prompt": False}
    edit_json(folder / "phyai.json", **values)
    assert read_options(folder) == replace(Options(), **values)
    assert set(values) <= {entry.name for entry in fields(Options)}
