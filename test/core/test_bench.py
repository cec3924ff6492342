"""Guards against: work that is not counted, a floor above what was measured, prompts that are all of one length, rows
that measure the same thing twice, and figures that are not what they are called.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from core.fakes import LinearFlow, make_spec
from phyai_adapters.flow_tiny import SHIPPED_CHECKPOINT
from phyai_adapters.random_policies import RandomLoad, random_adapter
from phyai_core.bench import (
    Case,
    _measure_gaps,
    count_tokens,
    longest_inputs,
    make_cases,
    matrix_dtype,
    measure_cases,
    memory_bytes,
    profile_kernels,
    prompts_for,
    relative_error,
    summarise_ms,
)
from phyai_core.engine import Engine, blank_observation, blank_request
from phyai_core.recipe import EngineRecipe
from phyai_core.work import KNOWN_ROOFS, Roofs, Work, WorkCounter, count_work, find_roofs
from phyai_ros.cli.bench import _compare
from phyai_ros.cli.main import run

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(scope="module")
def pi05():
    torch.set_num_threads(1)
    return Engine(random_adapter("pi05", CPU, "tiny", cameras=2, prompt_tokens=60), CPU, batch_sizes=(1, 2))


def test_work_of_products_attention_and_convolutions():
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    q, kv = torch.zeros(2, 4, 6, 8), torch.zeros(2, 4, 9, 8)
    image, kernel = torch.zeros(1, 3, 8, 8), torch.zeros(16, 3, 2, 2)
    with WorkCounter() as counter:
        torch.nn.functional.linear(a, b.T)
        assert counter.take() == Work(2 * 3 * 5 * 7, 4 * 35)
        _ = a @ b
        assert counter.take() == Work(2 * 3 * 5 * 7, 4 * 35)
        torch.nn.functional.scaled_dot_product_attention(q, kv, kv)
        assert counter.take() == Work(2 * 2 * (2 * 4 * 6 * 9) * 8, 2 * 4 * kv.numel())
        torch.nn.functional.conv2d(image, kernel, stride=2)
        assert counter.take() == Work(2 * 16 * 4 * 4 * 12, 4 * kernel.numel())
        _ = a + 1.0
        assert counter.take() == Work()


def test_work_of_full_size_pi05_is_what_its_sizes_say():
    """3 cameras, 200 tokens, 50 rows, 10 steps; by hand: vision 660.5, expert 386.5 GFLOP, 623 MB of expert a step."""
    adapter = random_adapter("pi05", META)  # in float32, as a checkpoint would be on this device
    inputs = {name: value.to(META) for name, value in longest_inputs(adapter).items()}
    work = count_work(adapter, inputs, torch.bfloat16)
    projector = 2 * 3 * 256 * 1152 * 2048
    assert work["vision"].flops == pytest.approx(660.5e9 - projector, rel=1e-3)
    assert work["denoise"].flops == pytest.approx(386.5e9, rel=1e-3)
    assert work["denoise"].bytes / 10 == pytest.approx(642e6, rel=0.01)  # keys and values on top of the weights
    last_layer = 17 / 18  # all but keys and values of the last prefix layer is left out
    assert work["prefix"].flops == pytest.approx(3975e9 * last_layer + projector, rel=0.002)
    floor_ms = sum(KNOWN_ROOFS["H200"].floor_s(part) for part in work.values()) * 1e3
    assert floor_ms == pytest.approx(7.1, abs=0.1)


def test_fp8_halves_what_the_large_products_of_the_prefix_need_at_least():
    """Per token and layer: QKV, gate and up, down in FP8; output projection and attention stay."""
    works = []
    for fp8 in (False, True):
        adapter = random_adapter("pi05", META, fp8_prefix=fp8)
        inputs = {name: value.to(META) for name, value in longest_inputs(adapter).items()}
        works.append(count_work(adapter, inputs, torch.bfloat16))
        assert matrix_dtype(adapter) is torch.float32
    plain, rounded = works
    products = 17 * (2048 * 2560 + 3 * 2048 * 16384) + 2048 * 512
    assert plain["prefix"].flops - rounded["prefix"].flops == pytest.approx(968 * products, rel=1e-6)
    assert plain["prefix"].bytes - rounded["prefix"].bytes == pytest.approx(products, rel=1e-6)
    assert plain["denoise"] == rounded["denoise"] and plain["vision"] == rounded["vision"]


def test_a_floor_is_the_worse_of_arithmetic_and_memory():
    roofs = Roofs(flops=100.0, bytes=10.0, source="")
    assert roofs.floor_s(Work(flops=1000.0, bytes=1.0)) == 10.0
    assert roofs.floor_s(Work(flops=1.0, bytes=1000.0)) == 100.0


def test_no_measurement_is_below_its_floor(pi05):
    (case, *_) = make_cases(pi05.spec, prompts_for(pi05.adapter, 1), (1,))
    measure_cases(pi05, [case], runs=4, warm_up=1)
    work = count_work(pi05.adapter, longest_inputs(pi05.adapter), torch.float32)
    roofs = find_roofs(CPU, torch.float32)
    floor_s = sum(roofs.floor_s(part) for part in work.values())
    assert 0 < floor_s < min(case.device_s) <= min(case.wall_s)


def test_prompts_fill_the_largest_bucket_and_differ_in_length(pi05):
    prompts = prompts_for(pi05.adapter)
    blank = blank_observation(pi05.spec)
    inputs = [pi05.adapter.preprocess(replace(blank, prompt=prompt)) for prompt in prompts]
    assert {tuple(each["tokens"].shape) for each in inputs} == {(1, 60)}
    assert [count_tokens(each) for each in inputs] == list(range(60, 29, -2))
    assert prompts_for(LinearFlow(make_spec())) == [""]


def test_every_case_is_measured_as_often_and_reported_by_stage(pi05):
    cases = list(make_cases(pi05.spec, prompts_for(pi05.adapter, 3), pi05.batch_sizes))
    assert [case.name for case in cases] == ["fixed prompt", "varying prompt", "rtc identity", "batch 2"]
    assert [len(case.make(0)) for case in cases] == [1, 1, 1, 2]
    prompts = [{case.make(run)[0][0].prompt for run in range(6)} for case in cases]
    assert [len(used) for used in prompts] == [1, 3, 1, 1]
    assert cases[2].make(0)[0][1].abc[..., 2].any() and not cases[0].make(0)[0][1].abc[..., 2].any()
    measure_cases(pi05, cases, runs=8, warm_up=1)
    for case in cases:
        report = case.report()
        assert report["runs"] == len(case.device_s) == 8 // (2 if case.name == "batch 2" else 1)
        assert list(report["stages_ms"]) == ["preprocess", "vision", "prefix", "denoise", "postprocess"]
        assert report["device_ms"]["p50"] <= report["wall_ms"]["p50"] <= report["wall_ms"]["max"]


def test_summary_in_milliseconds():
    summary = summarise_ms(np.arange(1, 101) / 1e3)
    assert summary == pytest.approx({"mean": 50.5, "p50": 50.5, "p90": 90.1, "p99": 99.01, "max": 100.0})


def test_warm_up_runs_are_not_counted():
    calls = []
    engine = Engine(LinearFlow(make_spec()), CPU)
    request = blank_request(engine.spec)[:2]
    case = Case("one", lambda run: calls.append(run) or [request])
    measure_cases(engine, [case], runs=6, warm_up=2)
    assert calls == [0, 1, 0, 1, 2, 3, 4, 5] and len(case.wall_s) == 6


def test_relative_error_of_an_engine_to_itself_and_to_another(pi05):
    other = Engine(random_adapter("pi05", CPU, "tiny", cameras=2, prompt_tokens=60, seed=1), CPU)
    request = blank_request(pi05.spec)
    noise = np.random.default_rng(0).standard_normal(request[2].shape, dtype=np.float32)
    assert relative_error(pi05, pi05, (*request[:2], noise)) == 0.0
    assert relative_error(pi05, other, (*request[:2], noise)) > 1e-3


def test_an_fp8_prefix_is_compared_with_the_same_weights_without_it():
    recipe = EngineRecipe(RandomLoad("tiny", 2, 60, fp8_prefix=True), "pi05")
    error = _compare(recipe.build(), recipe)
    assert 0.0 < error < 0.05
    plain = replace(recipe, load=replace(recipe.load, fp8_prefix=False))
    assert _compare(plain.build(), recipe) == 0.0


def test_what_a_cpu_cannot_say_is_unknown(pi05):
    assert profile_kernels(pi05) is None
    assert memory_bytes(CPU)["resident_peak"] > 1e7


def test_a_gap_is_time_that_no_kernel_covers():
    overlapping = [(10.0, 14.0), (12.0, 20.0), (13.0, 15.0), (21.5, 22.0), (22.0, 25.0)]
    assert _measure_gaps(overlapping) == {"span_us": 15.0, "idle_us": 1.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "flow_tiny"}, "has no random weights; allowed are pi0, pi05"),
        ({"size": "huge"}, "allowed are full, tiny"),
        ({"cameras": 4}, "allowed are 1 to 3"),
        ({"prompt_tokens": 0}, "allowed are 4 to 1024"),
    ],
)
def test_wrong_sizes_say_what_is_allowed(changes, words):
    with pytest.raises(ValueError, match=words):
        random_adapter(**{"name": "pi05", "device": CPU, "size": "tiny", **changes})


GOLDEN_POLICIES = Path(__file__).parents[1] / "golden" / "policies"
TABLE = {"bench": "phyai_ros.cli.bench:bench"}


def test_the_command_writes_every_figure(tmp_path, capfd):
    file = tmp_path / "bench.json"
    assert run(["bench", "--checkpoint", str(SHIPPED_CHECKPOINT), "--json", str(file)], TABLE) == 0
    report = json.loads(file.read_text())
    assert report["policy"] == "flow_tiny"
    assert report["runs"] == 200 and report["device"] == "cpu" and report["dtype"] == "float32"
    assert list(report["rows"]) == ["fixed prompt", "rtc identity"]
    for row in report["rows"].values():
        wall = row["wall_ms"]
        assert 0 < wall["p50"] <= wall["p99"] <= wall["max"]
        assert set(row["stages_ms"]) == {"preprocess", "prefix", "denoise", "postprocess"}
    floor = report["floor"]
    assert floor["ms"] == pytest.approx(sum(stage["ms"] for stage in floor["stages"].values()))
    assert set(report["start_s"]) == {"import", "load", "capture", "first inference"}
    assert report["kernels_per_chunk"] is None
    assert "fixed prompt" in capfd.readouterr().out


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_an_exported_network_has_times_and_no_floor(tmp_path, capfd):
    file = tmp_path / "bench.json"
    assert run(["bench", "--checkpoint", str(GOLDEN_POLICIES / "h1"), "--json", str(file)], TABLE) == 0
    report, out = json.loads(file.read_text()), capfd.readouterr().out
    assert report["floor"] is report["dtype"] is None and report["rows"]["fixed prompt"]["wall_ms"]["p50"] > 0
    assert "an exported network" in out and "floor" not in out


def test_options_that_contradict_each_other_are_told(capfd):
    for options in ([], ["--random-weights", "--checkpoint", "somewhere"]):
        assert run(["bench", *options], TABLE) == 2
        assert "--checkpoint and --random-weights: give exactly one" in capfd.readouterr().err
    assert run(["bench", "--random-weights", "--device", "tpu"], TABLE) == 2
    assert "'tpu'; allowed is cpu, cuda" in capfd.readouterr().err
