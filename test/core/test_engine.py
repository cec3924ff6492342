"""Guards against: sampling that differs from the formulas, flow time off by a step, the caller's noise overwritten,
stages without a time, a warm-up that does not run, and a device that is quietly replaced by another.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.fakes import LinearFlow, make_spec
from core.golden import GOLDEN
from phyai_core.engine import Engine, blank_observation, blank_request, resolve_device
from phyai_core.rtc import RtcConfig, build_tables, tables_for
from phyai_core.types import Leftover

CPU = torch.device("cpu")
RESULTS = {"none": "A_none", "identity": "A_identity", "hard": "A_inpaint_hard", "ramp": "A_groot_ramp6"}


def make_engine(case):
    spec = make_spec(case["H"], case["D"], case["n"], state=(), action=make_spec().action[: case["D"]])
    adapter = LinearFlow(spec, case["M"], case["a"])
    adapter.offset = torch.tensor(case["b"])
    return Engine(adapter, CPU)


@pytest.mark.parametrize("case", GOLDEN["full_sampling"], ids=lambda c: f"H{c['H']}d{c['d']}n{c['n']}")
@pytest.mark.parametrize("mode", RESULTS)
def test_golden_sampling_through_the_engine(case, mode):
    engine = make_engine(case)
    config = RtcConfig(mode, schedule=case["schedule"], max_guidance_weight=case["beta"])
    rows = np.array(case["Y"][: case["H"] - case["s"]], np.float32)
    tables = build_tables(config, case["H"], case["n"], case["D"], Leftover(rows, rows, case["d"], case["s"]))
    noise = np.array(case["eps"], np.float32)
    result = engine.infer(blank_observation(engine.spec), tables, noise)
    np.testing.assert_allclose(result.latent, case[RESULTS[mode]], atol=1e-5)
    np.testing.assert_allclose(result.actions, 10 * result.latent[:, : engine.spec.action_dim])
    np.testing.assert_array_equal(noise, np.array(case["eps"], np.float32))
    assert engine.adapter.flow_times == pytest.approx([k / case["n"] for k in range(case["n"])])


def test_result_is_float32_numpy_with_every_stage_timed():
    engine = Engine(LinearFlow(make_spec()), CPU)
    tables = build_tables(RtcConfig("none"), 8, 5, 3, None)
    result = engine.infer(blank_observation(engine.spec), tables, torch.zeros(8, 3))
    assert result.latent.shape == (8, 3) and result.actions.shape == (8, 2)
    assert result.latent.dtype == result.actions.dtype == np.float32
    assert list(result.stages_s) == ["preprocess", "prefix", "denoise", "postprocess"]
    assert all(seconds > 0 for seconds in result.stages_s.values())


def test_the_observation_reaches_the_network_and_its_errors_reach_the_caller():
    engine = Engine(LinearFlow(make_spec()), CPU)
    tables = build_tables(RtcConfig("none"), 8, 5, 3, None)
    obs = blank_observation(engine.spec)
    obs.state[:] = [0.5, -0.25]
    latent = engine.infer(obs, tables, np.zeros((8, 3), np.float32)).latent
    np.testing.assert_allclose(latent, np.tile([0.5, -0.25, 0.0], (8, 1)), atol=1e-6)
    obs.images.clear()
    with pytest.raises(ValueError, match="cameras"):
        engine.infer(obs, tables, np.zeros((8, 3), np.float32))


def test_warm_up_runs_the_network_and_reports_progress():
    engine = Engine(LinearFlow(make_spec()), CPU)
    seen = []
    seconds = engine.warm_up(3, lambda done, runs: seen.append((done, runs)))
    assert seen == [(1, 3), (2, 3), (3, 3)] and len(seconds) == 3 and min(seconds) > 0
    assert len(engine.adapter.flow_times) == 15


class Predictor(LinearFlow):
    def predict(self, prefix, noise):
        return torch.ones_like(noise)

    def predict_onto(self, prefix, noise, leftover, frozen):
        return torch.where(frozen, leftover, self.predict(prefix, noise))


def test_a_policy_without_denoise_steps_predicts_at_once():
    spec = make_spec(steps=0)
    engine = Engine(Predictor(spec), CPU)
    assert len(engine.warm_up(2)) == 2 and not engine.adapter.flow_times
    obs, tables, noise = blank_request(spec)
    assert tables.abc.shape == (0, spec.action_horizon, 3)
    assert engine.infer(obs, tables, noise).latent.shape == (spec.action_horizon, spec.latent_dim)
    with pytest.raises(ValueError, match="no denoise steps to guide"):
        Engine(Predictor(spec), CPU, guidance="fd")


def test_a_prediction_is_told_its_frozen_rows_in_mode_hard_only():
    spec = make_spec(steps=0)
    engine, (obs, _, noise) = Engine(Predictor(spec), CPU), blank_request(spec)
    rows = np.full((6, spec.latent_dim), 5.0, np.float32)
    leftover = Leftover(rows, rows[:, :2], delay=2, execution_horizon=2)
    for mode, expected in (("hard", 2), ("none", 0), ("identity", 0)):
        latent = engine.infer(obs, tables_for(RtcConfig(mode), spec, leftover), noise).latent
        assert (latent[:, :2] == 5).all(1).sum() == expected, mode
        assert (latent[expected:] == 1).all() and (latent[:, 2] == 1).all()  # padding is never conditioned


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "mps", "CPU"])
def test_unknown_devices_are_refused(name):
    with pytest.raises(ValueError, match=r"inference.device is .*; allowed is cpu, cuda or cuda:<index>"):
        resolve_device(name)


def test_cuda_is_never_replaced_by_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("cpu") == CPU
    with pytest.raises(ValueError, match=r"'cuda'.*finds no CUDA device"):
        resolve_device("cuda")


def test_cuda_indices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda") == torch.device("cuda:0") and resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"cuda:2.*cuda:0 to cuda:1"):
        resolve_device("cuda:2")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu():
    leftover = Leftover(np.ones((5, 3), np.float32), np.ones((5, 2), np.float32), delay=2, execution_horizon=3)
    tables = build_tables(RtcConfig(), 8, 5, 3, leftover)
    noise = np.random.default_rng(0).standard_normal((8, 3), dtype=np.float32)
    latents = []
    for device in (CPU, resolve_device("cuda")):
        adapter = LinearFlow(make_spec(), np.eye(8) * 0.3, np.ones(3))
        adapter.mix, adapter.drift, adapter.offset = (
            t.to(device) for t in (adapter.mix, adapter.drift, adapter.offset)
        )
        latents.append(
            Engine(adapter, device, use_graphs=False).infer(blank_observation(adapter.spec), tables, noise).latent
        )
    np.testing.assert_allclose(latents[0], latents[1], atol=1e-5)
