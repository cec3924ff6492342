"""Guards against: a measurement of another network than the one people run, and shapes that are only found out on a
GPU."""

from __future__ import annotations

import pytest
import torch

from phyai_adapters.random_policies import random_adapter
from phyai_core.engine import Engine, blank_request
from phyai_core.work import count_work


@pytest.mark.parametrize("name", ["smolvla", "groot", "minicpm"])
def test_a_tiny_one_runs(name):
    engine = Engine(random_adapter(name, torch.device("cpu"), "tiny", cameras=2, prompt_tokens=16), torch.device("cpu"))
    result = engine.infer(*blank_request(engine.spec))
    assert result.actions.shape == (engine.spec.action_horizon, 7) and list(result.stages_s)[1:4] == [
        "vision",
        "prefix",
        "denoise",
    ]


@pytest.mark.parametrize(
    ("name", "parameters", "horizon"), [("smolvla", 394, 50), ("groot", 3080, 40), ("minicpm", 1536, 30)]
)
def test_the_full_size_is_counted_without_memory(name, parameters, horizon):
    meta = torch.device("meta")
    adapter = random_adapter(name, meta, "full", cameras=2, prompt_tokens=48)
    assert round(sum(x.numel() for x in adapter.network.parameters()) / 1e6) == pytest.approx(parameters, rel=0.05)
    assert adapter.spec.action_horizon == horizon
    inputs = {key: value.to(meta) for key, value in adapter.preprocess(blank_request(adapter.spec)[0]).items()}
    work = count_work(adapter, inputs, torch.bfloat16)
    assert list(work) == ["vision", "prefix", "denoise"] and all(part.flops > 1e9 for part in work.values())


def test_others_are_refused_by_name():
    with pytest.raises(ValueError, match="'act' has no random weights; allowed are pi0, pi05, smolvla, groot, minicpm"):
        random_adapter("act", torch.device("cpu"))
