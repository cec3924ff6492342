"""Guards against: checkpoints that are known but cannot run refused without what they are, lack, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from pi_goldens import MODELS
from safetensors.torch import save_file

from phyai_adapters.description import describe_checkpoint
from phyai_adapters.detection import detect_adapter

POLICIES = MODELS.parent / "policies"


def refused(folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        detect_adapter(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "lacks"),
    [
        ("groot_n1_7", "GR00T N1.7", "config.json, processor_config.json, statistics.json and embodiment_id.json"),
        ("minicpm_v46_backbone", "MiniCPM-V 4.6", "config.json"),
        ("smolvla", "SmolVLA", "config.json, policy_preprocessor.json"),
        ("act", "ACT", "config.json, policy_preprocessor.json"),
        ("diffusion", "Diffusion Policy", "config.json, policy_preprocessor.json"),
    ],
)
def test_bare_weights_are_recognised_and_what_is_missing_is_listed(kind, name, lacks, tmp_path):
    shutil.copyfile(MODELS / kind / "model.safetensors", tmp_path / "model.safetensors")
    text = refused(tmp_path)
    assert f"{tmp_path} is {name}, by its weights, but lacks {lacks}" in text and "copy that from" in text


def test_an_exported_network_without_a_contract_is_opened_and_described():
    pytest.importorskip("onnxruntime")
    text = refused(POLICIES / "g1" / "policy.onnx")
    assert "ONNX; inputs obs [1, 103]; outputs continuous_actions [1, 29]" in text
    assert 'Write policy.yaml beside it, beginning with "file: policy.onnx"' in text


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_module_tells_its_memory(tmp_path):
    shutil.copyfile(POLICIES / "h1" / "motion.pt", tmp_path / "motion.pt")
    for path in (tmp_path, tmp_path / "motion.pt"):
        text = refused(path)
        assert "TorchScript; inputs x; methods reset_memory; buffers hidden_state [1, 1, 64], cell_state" in text
    torch.save({"weights": torch.zeros(2)}, tmp_path / "motion.pt")
    assert "is no TorchScript module" in refused(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("params/_METADATA", {}, "a JAX checkpoint of openpi; convert it with"),
        ("adapter_config.json", {}, "a LoRA adapter; merge it"),
        ("pretrained_model/config.json", {}, "a training folder of lerobot; give "),
        ("pytorch_model.bin", {}, "pickled weights, which are not opened; save them as model.safetensors"),
        ("config.json", {"type": "pi0_fast"}, "pi0-FAST of lerobot; its tokens of actions are not supported"),
        ("config.json", {"model_type": "gr00t_n1_6"}, "GR00T N1.6; supported is N1.7"),
        ("config.json", {"_class_name": "AutoencoderKLWan"}, "the video autoencoder of Cosmos3; give the folder that"),
        ("config.json", {"type": "xvla"}, "is of the type 'xvla'; known are act, cosmos3"),
        ("config.json", {"type": "xvla"}, "write policy.yaml beside an ONNX or TorchScript file"),
        ("readme.md", {}, "is of no known kind"),
    ],
)
def test_other_layouts_are_named_with_what_to_do(file, content, text, tmp_path):
    target = tmp_path / file
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(content))
    assert text in refused(tmp_path)


def test_a_file_or_nothing_is_no_checkpoint(tmp_path):
    assert "is not a folder; give the folder" in refused(tmp_path / "nowhere")
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert "is not a folder; give the folder" in refused(tmp_path / "model.safetensors")
    assert "is of no known kind" in refused(tmp_path)


def test_a_complete_layout_that_only_lacks_its_tokenizer_is_described(tmp_path):
    shutil.copytree(MODELS / "cosmos3", tmp_path / "cosmos3", ignore=shutil.ignore_patterns("phyai.json"))
    assert detect_adapter(tmp_path / "cosmos3") == "cosmos3"
    found = describe_checkpoint(tmp_path / "cosmos3", "cosmos3")
    assert (found.spec.action_horizon, 1 / found.spec.dt_s) == (32, 15.0)
    assert [sentence.partition(":")[0] for sentence in found.to_do] == ["tokenizer"]
