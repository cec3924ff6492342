"""Guards against: layers that compute something else where their kernels run, alone or for several robots at once, and
kernels under a network that is to be differentiated."""

from __future__ import annotations

import pytest
import torch
from comparison import relative_error

import phyai_kernels.op
from phyai_adapters.random_policies import random_adapter
from phyai_core.engine import blank_request
from phyai_core.layers.fusing import fuses
from phyai_kernels.rms_norm import RMS_NORM


@pytest.fixture
def choose(monkeypatch):
    """choose(True): kernels run wherever this test runs; choose(False): nowhere."""
    return lambda fused: monkeypatch.setattr(
        phyai_kernels.op, "_refuse_triton", lambda *_, **__: None if fused else "left out"
    )


def infer(adapter, robots: int) -> torch.Tensor:
    inputs = {name: x.to(adapter.device) for name, x in adapter.preprocess(blank_request(adapter.spec)[0]).items()}
    prefix = adapter.encode_prefix({name: x.repeat(robots, *[1] * (x.ndim - 1)) for name, x in inputs.items()})
    noise = torch.randn(robots, *adapter.spec.noise_shape, generator=torch.Generator().manual_seed(1))
    noise = noise.to(adapter.device)
    if not adapter.spec.num_denoise_steps:
        return adapter.predict(prefix, noise)
    return adapter.denoise_step(prefix, noise, torch.zeros(noise.shape[:2], device=adapter.device))


@pytest.mark.parametrize(("name", "robots"), [("smolvla", 2), ("groot", 1), ("groot", 2), ("minicpm", 1)])
def test_policies_are_the_same_with_and_without_kernels(where, choose, name, robots):
    adapter = random_adapter(name, where, "tiny", cameras=1, prompt_tokens=8, dtype="float32")
    results = []
    for fused in (True, False):
        choose(fused)
        results.append(infer(adapter, robots))
    assert relative_error(*results) < 1e-5


def test_whoever_differentiates_gets_torch(where, choose):
    choose(True)
    x = torch.ones(2, 3, device=where)
    assert not fuses(RMS_NORM, x)
    with torch.no_grad():
        assert fuses(RMS_NORM, x)
