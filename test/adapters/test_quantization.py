"""Guards against: a rounded checkpoint that lost a tensor, a file or its scales, that loads as something else, or that
computes another thing than the rounded network; one that is worse than allowed and yet written; weights of a foreign
scheme taken for ours.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import relative_error
from pi_goldens import MODELS, copy_checkpoint, edit_tensors, tensors
from safetensors.torch import load_file, save_file

from phyai_adapters import load_adapter
from phyai_adapters._deployment import read_options
from phyai_adapters.pi05 import Pi05
from phyai_adapters.quantization import sample_chunks
from phyai_adapters.random_policies import write_checkpoint
from phyai_core.layers.fp8 import Fp8Linear
from phyai_ros.cli.main import COMMANDS, run

CPU = torch.device("cpu")
LANGUAGE = "model.paligemma_with_expert.paligemma.model.language_model.layers."
KINDS = pytest.mark.parametrize("kind", ["pi0", "pi05"])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def quantize(source: Path, out: Path, *more: str) -> int:
    return run(["quantize", str(source), str(out), *more], COMMANDS)


@KINDS
def test_a_golden_policy_stays_within_the_bound_and_says_how_near(kind, tmp_path, capfd):
    out, report = tmp_path / "fp8", tmp_path / "report.json"
    assert quantize(MODELS / kind, out, "--io", str(MODELS / kind), "--json", str(report)) == 0
    values = json.loads(report.read_text())
    assert len(values["relative_l2"]) == 2 and all(1e-3 < error < 0.05 for error in values["relative_l2"])
    assert f"{max(values['relative_l2']):.2e}" in capfd.readouterr().out
    assert json.loads((out / "quantization.json").read_text()) == values
    assert run(["verify", str(out), "--io", str(MODELS / kind)], COMMANDS) == 0
    assert run(["inspect", str(out)], COMMANDS) == 0
    assert f"fp8-prefix, actions differ by up to {max(values['relative_l2']):.1e}" in capfd.readouterr().out


@KINDS
def test_what_is_written_is_what_rounding_while_loading_gives(kind, tmp_path):
    assert quantize(MODELS / kind, tmp_path / "fp8", "--io", str(MODELS / kind)) == 0
    options = replace(read_options(MODELS / kind), fp8_prefix=True)
    first = load_adapter(kind, tmp_path / "fp8", CPU)
    adapters = [first, type(first).load(MODELS / kind, CPU, options)]
    assert all(isinstance(adapter.network.vlm.layers[0].gate_up, Fp8Linear) for adapter in adapters)
    written, rounded = (sample_chunks(adapter, CPU, MODELS / kind) for adapter in adapters)
    assert np.array_equal(written, rounded)


def test_only_large_weights_of_the_prefix_change_and_every_file_comes_along(tmp_path):
    out = tmp_path / "fp8"
    source = copy_checkpoint("pi05", tmp_path)
    (source / "assets").mkdir()
    (source / "assets" / "note.txt").write_text("kept")
    assert quantize(source, out) == 0
    before, after = tensors("pi05", "model"), load_file(out / "model.safetensors")
    rounded = {key for key, tensor in after.items() if tensor.dtype == torch.float8_e4m3fn}
    parts = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    )
    assert rounded == {f"{LANGUAGE}{layer}.{part}.weight" for layer in range(2) for part in parts} | {
        f"{LANGUAGE}2.self_attn.{part}_proj.weight" for part in "kv"
    }
    assert after.keys() - before.keys() == {f"{key}_scale" for key in rounded} and before.keys() <= after.keys()
    for key in before.keys() - rounded:
        assert torch.equal(after[key], before[key])
    for key in rounded:
        restored = after[key].float() * after[f"{key}_scale"][:, None]
        assert relative_error(restored, before[key]) < 0.04
    assert (out / "assets" / "note.txt").read_text() == "kept"
    assert (out / "model.safetensors").stat().st_mode == (source / "model.safetensors").stat().st_mode
    assert {file.name for file in source.iterdir()} | {"quantization.json"} == {file.name for file in out.iterdir()}


def test_shards_stay_shards(tmp_path):
    source = copy_checkpoint("pi05", tmp_path)
    weights = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    places = {}
    for number, part in enumerate(("language_model", "")):
        held = {key: tensor for key, tensor in weights.items() if key not in places and part in key}
        save_file(held, source / f"model-{number}.safetensors")
        places.update(dict.fromkeys(held, f"model-{number}.safetensors"))
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert quantize(source, tmp_path / "fp8") == 0
    index = json.loads((tmp_path / "fp8" / "model.safetensors.index.json").read_text())
    key = f"{LANGUAGE}0.mlp.up_proj.weight"
    assert index["weight_map"][f"{key}_scale"] == index["weight_map"][key] == "model-0.safetensors"
    assert not (tmp_path / "fp8" / "model.safetensors").exists()
    load_adapter("pi05", tmp_path / "fp8", CPU)


def test_above_the_bound_nothing_is_written_unless_forced(tmp_path, capfd):
    out = tmp_path / "fp8"
    bound = ("--max-error", "1e-4")
    assert quantize(MODELS / "pi05", out, *bound) == 1
    assert "allowed is 0.0001; nothing was written" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert quantize(MODELS / "pi05", out, *bound, "--force") == 0
    assert json.loads((out / "quantization.json").read_text())["forced"]


def test_actions_that_are_no_numbers_are_refused_even_by_force(tmp_path, capfd):
    source = copy_checkpoint("pi05", tmp_path)
    name = f"{LANGUAGE}0.mlp.up_proj.weight"
    edit_tensors(source / "model.safetensors", lambda values: {**values, name: values[name] * torch.nan})
    assert quantize(source, tmp_path / "fp8", "--force") == 1
    assert "are not finite" in capfd.readouterr().err and not (tmp_path / "fp8").exists()


def test_mistakes_are_told_before_anything_is_computed(tmp_path, capfd):
    (tmp_path / "there").mkdir()
    inside = MODELS / "pi05" / "fp8"
    for arguments, words in (
        ((MODELS / "pi05", inside), "is inside of"),
        ((MODELS / "pi05", tmp_path / "there"), "exists; give a folder that does not"),
        ((MODELS / "pi05", tmp_path / "new", "--scheme", "int3"), "'int3' is unknown; allowed: fp8-prefix"),
        (
            (MODELS / "pi05", tmp_path / "new", "--adapter", "act"),
            "act cannot be quantised; fp8-prefix is for pi0, pi05",
        ),
    ):
        assert quantize(*arguments) == 2
        assert words in capfd.readouterr().err
    assert not (tmp_path / "new").exists() and not inside.exists()


def test_a_rounded_checkpoint_is_not_rounded_again_and_a_foreign_scheme_not_guessed(tmp_path, capfd):
    out = tmp_path / "fp8"
    assert quantize(MODELS / "pi05", out) == 0
    assert quantize(out, tmp_path / "again") == 2
    assert "already holds FP8 weights" in capfd.readouterr().err
    key = f"{LANGUAGE}0.self_attn.o_proj.weight"
    edit_tensors(out / "model.safetensors", lambda values: {**values, key: values[key].to(torch.float8_e4m3fn)})
    with pytest.raises(
        ValueError, match=r"unknown scheme \(.*o_proj.weight and 0 more differ\); supported is fp8-prefix"
    ):
        load_adapter("pi05", out, CPU)


def test_scales_that_are_missing_are_named(tmp_path):
    out, key = tmp_path / "fp8", f"{LANGUAGE}0.mlp.up_proj.weight_scale"
    assert quantize(MODELS / "pi05", out) == 0
    edit_tensors(
        out / "model.safetensors", lambda values: {name: value for name, value in values.items() if name != key}
    )
    with pytest.raises(ValueError, match=r"1 missing: .*layers.0.mlp.up_proj.weight_scale"):
        load_adapter("pi05", out, CPU)


def test_a_gpu_that_is_too_old_is_told_at_once(tmp_path, monkeypatch):
    assert quantize(MODELS / "pi05", tmp_path / "fp8") == 0
    monkeypatch.setattr("phyai_adapters._loading.refuse_fp8", lambda device: "it is too old")
    with pytest.raises(
        ValueError, match="the checkpoint's prefix is in FP8, but it is too old; take the checkpoint that"
    ):
        load_adapter("pi05", tmp_path / "fp8", CPU)
    options = replace(read_options(MODELS / "pi05"), fp8_prefix=True)
    with pytest.raises(ValueError, match=r"fp8_prefix is true in phyai.json, but it is too old"):
        Pi05.load(MODELS / "pi05", CPU, options)


def test_the_fused_launches_run_it_too(tmp_path):
    write_checkpoint("pi05", tmp_path / "plain", CPU, "tiny")
    assert quantize(tmp_path / "plain", tmp_path / "fp8") == 0
    adapter = load_adapter("pi05", tmp_path / "fp8", CPU)
    methods = sample_chunks(adapter, CPU, None)
    adapter.fuses_everywhere = True
    fused = sample_chunks(adapter, CPU, None)
    assert "prefix" in adapter.dispatcher.explain() and "float8_e4m3fn" in adapter.dispatcher.explain()
    assert relative_error(torch.tensor(np.stack(fused)), torch.tensor(np.stack(methods))) < 1e-2
