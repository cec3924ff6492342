"""Guards against: a checkpoint that has to be complete before anybody can ask what it is, weights read just to look,
facts that differ from what the policy then does, and a parameter file that the node refuses.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from phyai_adapters import load_adapter
from phyai_adapters.description import describe_checkpoint
from phyai_adapters.detection import detect_adapter
from phyai_adapters.flow_tiny import SHIPPED_CHECKPOINT
from phyai_adapters.random_policies import write_checkpoint
from phyai_ros.cli.main import run
from phyai_ros.parameters import ParameterError
from phyai_ros.settings import Settings
from phyai_ros.spec_checks import check_against_spec

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
TABLE = {"inspect": "phyai_ros.cli.inspect:inspect"}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def openpi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openpi")
    write_checkpoint("pi05", folder, CPU, "tiny")
    return folder


def test_the_adapter_is_told_from_the_files(openpi, tmp_path):
    assert detect_adapter(GOLDEN / "pi0") == "pi0" and detect_adapter(GOLDEN / "pi05") == "pi05"
    assert detect_adapter(SHIPPED_CHECKPOINT) == "flow_tiny" and detect_adapter(openpi) == "pi05"
    (tmp_path / "config.json").write_text('{"type": "xvla"}')
    with pytest.raises(ValueError, match=r"type 'xvla'; known are act, .*flow_tiny.*, pi0, pi05"):
        detect_adapter(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        detect_adapter(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["pi0", "pi05", "flow_tiny", "openpi"])
def test_the_description_is_what_the_loaded_policy_says(name, openpi):
    folder = {"flow_tiny": SHIPPED_CHECKPOINT, "openpi": openpi}.get(name, GOLDEN / name)
    kind = detect_adapter(folder)
    loaded = load_adapter(kind, folder, CPU)
    found = describe_checkpoint(folder, kind)
    assert found.spec == loaded.spec and found.to_do == ()
    assert found.parameters == sum(parameter.numel() for parameter in loaded.network.parameters())
    assert len(found.state_range) == loaded.spec.state_dim and len(found.action_range) == loaded.spec.action_dim
    assert found.layout == {"flow_tiny": "phyai_ros", "openpi": "openpi"}.get(name, "lerobot")
    assert bool(found.prompt_tokens) == (name != "flow_tiny")


def test_a_bare_checkpoint_says_what_is_still_to_do(tmp_path, capfd):
    folder = tmp_path / "bare"
    shutil.copytree(GOLDEN / "pi0", folder)
    (folder / "phyai.json").unlink()
    report = tmp_path / "report.json"
    assert run(["inspect", str(folder), "--json", str(report)], TABLE) == 0
    out = capfd.readouterr().out
    assert "at unknown rate" in out and 'Write {"rate_hz": <Hz>}' in out and "tokenizer.model" in out
    values = json.loads(report.read_text())
    assert [sentence.partition(":")[0] for sentence in values["to_do"]] == ["rate_hz", "tokenizer"]
    assert values["spec"]["rate_hz"] is None
    with pytest.raises(ValueError, match="rate_hz"):
        load_adapter("pi0", folder, CPU)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    ("kind", "folder", "mode"),
    [
        ("pi0", GOLDEN / "pi0", "identity"),
        ("flow_tiny", SHIPPED_CHECKPOINT, "identity"),
        ("cosmos3", GOLDEN / "cosmos3", "hard"),
        ("policy_file", GOLDEN.with_name("policies") / "h1", "instant"),
    ],
)
def test_the_parameter_file_fits_the_policy(kind, folder, mode, tmp_path, capfd):
    file = tmp_path / "sub" / "policy.yaml"
    assert run(["inspect", str(folder), "--yaml", str(file)], TABLE) == 0
    out = capfd.readouterr().out
    assert f"adapter: {kind}" in out and f"wrote {file}" in out
    values = yaml.safe_load(file.read_text())["/**"]["ros__parameters"]
    cameras = values.pop("cameras", {"keys": []})
    values["cameras"] = {"keys": cameras.pop("keys"), "by_key": cameras}
    settings = check_against_spec(Settings.model_validate(values), describe_checkpoint(folder, kind).spec)
    assert settings.rtc.mode == mode and Path(settings.inference.checkpoint) == folder.resolve()


def test_modes_that_change_velocities_are_refused_where_the_sampler_gives_none():
    values = {"cameras": {"keys": ["wrist_image_left", "exterior_image_1_left", "exterior_image_2_left"]}}
    spec = describe_checkpoint(GOLDEN / "cosmos3", "cosmos3").spec
    for mode in ("identity", "ramp", "vjp"):
        with pytest.raises(ParameterError, match=f"rtc.mode: '{mode}' is not allowed.*hard with the policy cosmos3"):
            check_against_spec(Settings.model_validate({**values, "rtc": {"mode": mode}}), spec)


def test_a_broken_checkpoint_is_told_in_a_sentence(tmp_path, capfd):
    shutil.copytree(GOLDEN / "pi0", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing")
    assert run(["inspect", str(tmp_path / "broken")], TABLE) == 2
    assert "model.safetensors cannot be read" in capfd.readouterr().err
