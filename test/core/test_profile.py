"""Guards, for the profile command, against: a choice that nobody can follow, a profile that the runtime does not find
or does not believe, calls that are measured twice, and a policy that has nothing to measure.
"""

from __future__ import annotations

import json

import pytest
import torch
from pi_goldens import CAMERAS, MODELS

from phyai_adapters.flow_tiny import SHIPPED_CHECKPOINT
from phyai_adapters.random_policies import RandomLoad, write_checkpoint
from phyai_core.kernel_times import measure_kernels
from phyai_core.recipe import EngineRecipe
from phyai_kernels.profile import load_profile
from phyai_ros.assembly import load_policy
from phyai_ros.cli.main import run
from phyai_ros.settings import Settings

CPU = torch.device("cpu")
TINY = ("--device", "cpu", "--size", "tiny", "--cameras", "1", "--prompt-tokens", "20")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of one measurement, its report and what was printed."""
    folder = tmp_path_factory.mktemp("profile")
    assert run(["profile", *TINY, "--batch", "2", "--out", str(folder), "--json", str(folder / "report.json")]) == 0
    return folder, json.loads((folder / "report.json").read_text())


def test_every_candidate_is_measured_or_refused_with_a_reason_at_every_shape(measured):
    _, report = measured
    calls = {(choice["op"], choice["call"]): choice for choice in report["choices"]}
    assert {"prefix_attention", "dense", "dense_geglu", "expert_loops", "image_attention"} <= {op for op, _ in calls}
    robots = [call for op, call in calls if op == "expert_loops"]
    assert sorted(call.partition(":")[0] for call in robots) == ["1 robot", "2 robots"]
    for choice in calls.values():
        times = choice["us"]
        assert 0 < times[choice["taken"]] <= min(times.values()) / 0.95 * 1.001
        for name, reason in choice["reasons"].items():
            assert ("us measured" in reason) == (name in times) and (name in times or reason.startswith("refused: "))


def test_times_of_other_versions_are_replaced_and_that_is_said(measured, tmp_path, capsys):
    folder, _ = measured
    known = load_profile(folder, CPU)
    known.versions["torch"] = "0.0"
    known.save(tmp_path)
    capsys.readouterr()
    assert run(["profile", *TINY, "--out", str(tmp_path)]) == 0
    assert "the known times are replaced: measured with torch 0.0, now" in capsys.readouterr().out
    assert load_profile(tmp_path, CPU).refuse(CPU) is None


def test_the_runtime_finds_and_believes_it(measured):
    folder, report = measured
    engine = EngineRecipe(RandomLoad("tiny", 1, 20), "pi05", kernel_profile=folder).build()
    engine.adapter.fuses_everywhere = True
    engine.warm_up(1)
    chosen = {(choice.op, choice.problem): choice for choice in engine.adapter.dispatcher.choices}
    expected = {(choice["op"], choice["call"]): choice["taken"] for choice in report["choices"]}
    assert len(chosen) >= 10
    for key, choice in chosen.items():
        assert choice.taken == expected[key] and "us measured" in choice.reasons[choice.taken]


def test_an_engine_says_what_its_choices_rest_on(measured, tmp_path):
    folder, _ = measured
    said = {}
    for name, where in (("measured", folder), ("empty", tmp_path)):
        engine = EngineRecipe(RandomLoad("tiny", 1, 20), "pi05", kernel_profile=where).build()
        engine.adapter.fuses_everywhere = True
        engine.warm_up(1)
        said[name] = engine.kernel_choices
    count = said["measured"].split()[0]
    assert said["measured"] == f"{count} kernels chosen, {count} by measurement"
    assert said["empty"] == f"{count} kernels chosen, 0 by measurement (no profile)"
    with pytest.raises(ValueError, match=r"kernel_profile is '.*nowhere', which is no folder; measure a profile there"):
        EngineRecipe(RandomLoad("tiny", 1, 20), "pi05", kernel_profile=tmp_path / "nowhere").build()


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_the_node_logs_it_wherever_inference_runs(placement):
    log = []
    cameras = {"keys": list(CAMERAS), "by_key": {key: {"topic": key} for key in CAMERAS}}
    inference = {"adapter": "pi0", "checkpoint": str(MODELS / "pi0"), "placement": placement}
    load_policy(Settings.model_validate({"inference": inference, "cameras": cameras}), log.append).close()
    (line,) = (line for line in log if "profile --explain" in line)
    assert line.startswith("fused inference refused: ") and line.endswith(" (see phyai-ros profile --explain)")


def test_it_is_kept_where_the_runtime_looks_and_only_new_calls_are_measured(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(["profile", *TINY]) == 0
    file = tmp_path / "phyai_ros" / "kernels" / "cpu.json"
    assert str(file) in capfd.readouterr().out
    first = load_profile(file.parent, CPU)
    known, told = {op: set(problems) for op, problems in first.times_us.items()}, []
    for words in (20, 24):
        adapter = RandomLoad("tiny", 1, words)("pi05", None, CPU)
        adapter.fuses_everywhere = True
        measure_kernels(adapter, CPU, (1,), first, lambda *what: told.append(what))
        assert bool(told) == (words == 24)
    assert not any(problem in known[op] for op, problem in told)


def test_explain_says_of_each_candidate_why(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write_checkpoint("pi0", tmp_path / "pi0", CPU, "tiny")
    assert run(["profile", str(tmp_path / "pi0"), "--device", "cpu", "--out", str(tmp_path), "--explain"]) == 0
    out = capfd.readouterr().out
    for words in ("flashinfer fa3", "refused: needs a CUDA device, not cpu", "taken: fastest", "not taken: slower"):
        assert words in out
    assert "dense_geglu float32[" in out and f"wrote {tmp_path / 'cpu.json'}" in out


def test_what_cannot_be_measured_is_told(tmp_path, capfd):
    checkpoint = ["profile", str(SHIPPED_CHECKPOINT), "--device", "cpu", "--out", str(tmp_path)]
    assert run(checkpoint) == 1
    assert "has no kernels to choose from here: it brings none" in capfd.readouterr().err
    assert run([*checkpoint, "--fp8-prefix"]) == 2
    assert "--fp8-prefix: only with random weights" in capfd.readouterr().err
    (tmp_path / "cpu.json").write_text("{")
    assert run(["profile", *TINY, "--out", str(tmp_path)]) == 2
    assert "is not a kernel profile" in capfd.readouterr().err
    assert run(["profile", *TINY, "--out", str(tmp_path), "--again"]) == 0
