"""Guards against: a wrong weight that is not noticed or blamed on a later stage, a NaN that counts as equal, padding
that counts, and a comparison of nothing at all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from phyai_core.verification import (
    INPUTS,
    OUTPUTS,
    STAGES,
    StageCheck,
    Tolerance,
    check_stage,
    check_stages,
    first_departure,
)
from phyai_ros.cli.main import run

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
TABLE = {"verify": "phyai_ros.cli.verify:verify"}
FINE = Tolerance(absolute=1e-5)
EXPERT = "model.paligemma_with_expert.gemma_expert.model.layers.1.self_attn.v_proj.weight"
VISION = "model.paligemma_with_expert.paligemma.model.vision_tower.vision_model.encoder.layers.1.mlp.fc2.bias"
LANGUAGE = "model.paligemma_with_expert.paligemma.model.language_model.layers.1.mlp.down_proj.weight"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_recorded_policies_are_reproduced_stage_by_stage_and_by_the_engine(kind, tmp_path, capfd):
    folder, report = GOLDEN / kind, tmp_path / "report.json"
    assert run(["verify", str(folder), "--io", str(folder), "--json", str(report)], TABLE) == 0
    values = json.loads(report.read_text())
    assert values["ok"] and values["departs_at"] is None
    names = [stage["name"] for stage in values["stages"]]
    for name in ("preproc.image.0", "prefix.embs", "prefix.kv.2.v", "step.9.v_t", "actions_padded (engine)"):
        assert name in names
    assert max(stage["max_abs"] for stage in values["stages"]) < 1e-5
    out = capfd.readouterr().out
    assert "departs" not in out and "within" in out and "equal" in out


def test_further_cases_lie_in_files_of_their_own(capfd):
    """Of Cosmos3: samples of diffusers' pipeline and, as droid_*.safetensors, of NVIDIA's server."""
    folder = str(GOLDEN / "cosmos3")
    assert run(["verify", folder, "--io", folder], TABLE) == 0
    out = capfd.readouterr().out
    assert "flowshift10_4_cfg3.action" in out and "droid_hist3_state.action" in out and "(engine)" in out


@pytest.mark.parametrize(
    ("key", "stage"), [(VISION, "prefix.embs"), (LANGUAGE, "prefix.kv.2.k"), (EXPERT, "suffix.step0.last_hidden")]
)
def test_one_wrong_weight_fails_and_names_the_stage(key, stage, tmp_path, capfd):
    shutil.copytree(GOLDEN / "pi05", tmp_path / "wrong")
    file = tmp_path / "wrong" / "model.safetensors"
    weights = load_file(file)
    weights[key].view(-1)[7] += 0.1
    file.unlink()
    save_file(weights, file)
    report = tmp_path / "report.json"
    arguments = ["verify", str(tmp_path / "wrong"), "--io", str(GOLDEN / "pi05"), "--json", str(report)]
    assert run(arguments, TABLE) == 1
    assert f"{stage} is the first stage that departs" in capfd.readouterr().err
    assert json.loads(report.read_text())["departs_at"] == stage


def test_what_is_missing_is_said_in_a_sentence(tmp_path, capfd):
    golden = GOLDEN / "pi05"
    save_file({"x": torch.zeros(1)}, tmp_path / INPUTS)
    assert run(["verify", str(golden), "--io", str(tmp_path)], TABLE) == 2
    assert f"{tmp_path} has no {OUTPUTS}" in capfd.readouterr().err
    save_file({"x": torch.zeros(1)}, tmp_path / OUTPUTS)
    assert run(["verify", str(golden), "--io", str(tmp_path)], TABLE) == 2
    assert "has no `noise`" in capfd.readouterr().err
    save_file({"noise": torch.zeros(1)}, tmp_path / INPUTS)
    assert run(["verify", str(golden), "--io", str(tmp_path)], TABLE) == 2
    assert "has no 'observation.language.tokens', which pi05 needs" in capfd.readouterr().err
    shutil.copy(golden / INPUTS, tmp_path / INPUTS)
    assert run(["verify", str(golden), "--io", str(tmp_path)], TABLE) == 2
    assert "none of the recorded values has a known name" in capfd.readouterr().err
    assert not (tmp_path / STAGES).exists()
    assert run(["verify", str(tmp_path), "--io", str(golden)], TABLE) == 2
    assert "is of no known kind; known are act," in capfd.readouterr().err
    assert run(["verify", str(golden), "--io", str(golden), "--adapter", "flow_tiny"], TABLE) == 2


def test_a_recording_of_another_policy_is_told(capfd):
    assert run(["verify", str(GOLDEN / "pi05"), "--io", str(GOLDEN / "smolvla")], TABLE) == 2
    assert "`noise` is [2, 8, 32], pi05 takes [B, 10, 32]; give a recording of this" in capfd.readouterr().err


def test_a_tolerance_can_be_asked_for(capfd):
    golden = str(GOLDEN / "pi05")
    assert run(["verify", golden, "--io", golden, "--tolerance", "1e-9"], TABLE) == 1
    assert "prefix.embs is the first stage" in capfd.readouterr().err


def check(value, expected, valid=None, tolerance=FINE) -> StageCheck:
    return check_stage("stage", torch.tensor(value), valid, torch.tensor(expected), tolerance)


def test_what_counts_as_equal():
    assert check([1.0, 2.0], [1.0, 2.0 + 5e-6]).ok
    assert not check([1.0, 2.0], [1.0, 2.1]).ok
    assert check([1.0, 2.0], [1.0, 2.1], tolerance=Tolerance(relative=0.1)).ok
    assert not check([1.0, float("nan")], [1.0, 2.0], tolerance=Tolerance(relative=1e9)).ok
    assert not check([True, False], [True, True]).ok and check([3, 4], [3, 4]).ok
    assert check([3, 4], [3, 5]).text == "1 values differ"
    wrong_shape = check([1.0], [1.0, 2.0])
    assert not wrong_shape.ok and wrong_shape.text == "shape [1], recorded is [2]"


def test_what_lies_under_padding_does_not_count():
    valid = torch.tensor([[True], [False]])
    assert check([[1.0, 2.0], [9.0, 9.0]], [[1.0, 2.0], [0.0, 0.0]], valid).ok
    assert not check([[1.0, 2.1], [9.0, 9.0]], [[1.0, 2.0], [0.0, 0.0]], valid).ok


def test_the_first_departure_is_the_first_one_computed():
    zero, one = torch.zeros(2), torch.ones(2)
    computed = [
        ("a", zero, None),
        ("not recorded", one, None),
        ("b", one, None),
        ("c", one, None),
        ("c (again)", zero, None),
    ]
    checks = check_stages(computed, {"c": zero, "b": zero, "a": zero}, FINE)
    assert [check.name for check in checks] == ["a", "b", "c", "c (again)"]
    assert first_departure(checks).name == "b"
    assert first_departure(checks[:1]) is None
