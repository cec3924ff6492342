"""Guards against: a measurement of another network than the one people run, and shapes that are only found out on a
GPU."""

from __future__ import annotations

import pytest
import torch

from phyai_adapters.random_policies import random_adapter
from phyai_core.engine import Engine, blank_request
from phyai_core.work import count_work


@pytest.mark.parametrize(
    ("name", "cameras", "prompt_tokens"),
    [("smolvla", 2, 16), ("groot", 2, 16), ("minicpm", 2, 16), ("cosmos3", 3, 160)],
)
def test_a_tiny_one_runs(name, cameras, prompt_tokens):
    cpu = torch.device("cpu")
    engine = Engine(random_adapter(name, cpu, "tiny", cameras=cameras, prompt_tokens=prompt_tokens), cpu)
    result = engine.infer(*blank_request(engine.spec))
    assert result.actions.shape == (engine.spec.action_horizon, engine.spec.action_dim)
    assert list(result.stages_s)[1:4] == ["vision", "prefix", "denoise"]


@pytest.mark.parametrize(
    ("name", "cameras", "parameters", "horizon"),
    [("smolvla", 2, 394, 50), ("groot", 2, 3080, 40), ("minicpm", 2, 1536, 30), ("cosmos3", 3, 15200, 32)],
)
def test_the_full_size_is_counted_without_memory(name, cameras, parameters, horizon):
    meta = torch.device("meta")
    adapter = random_adapter(name, meta, "full", cameras=cameras, prompt_tokens=160)
    assert round(sum(x.numel() for x in adapter.network.parameters()) / 1e6) == pytest.approx(parameters, rel=0.05)
    assert adapter.spec.action_horizon == horizon
    inputs = {key: value.to(meta) for key, value in adapter.preprocess(blank_request(adapter.spec)[0]).items()}
    work = count_work(adapter, inputs, torch.bfloat16)
    assert list(work) == ["vision", "prefix", "denoise"]
    counted = [part for stage, part in work.items() if (name, stage) != ("cosmos3", "prefix")]  # its text is kept
    assert all(part.flops > 1e9 for part in counted)


def test_a_policy_of_three_cameras_takes_no_other_number():
    with pytest.raises(ValueError, match="cameras: 2 asked for; cosmos3 has 3"):
        random_adapter("cosmos3", torch.device("cpu"), "tiny", cameras=2)


def test_others_are_refused_by_name():
    with pytest.raises(ValueError, match="'act' has no random weights; allowed are pi0, pi05, smolvla, groot, minicpm"):
        random_adapter("act", torch.device("cpu"))
