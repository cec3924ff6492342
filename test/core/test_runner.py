"""Guards against: robots of one batch that influence each other, values of an old request that leak into the next, a
new RTC setting that prepares anything anew, a prompt embedded twice or not at all, and shapes taken silently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from core.fakes import LinearFlow, make_spec
from phyai_core.engine import Engine, blank_observation, plain_tables, resolve_device
from phyai_core.packing import Field, Packing, Staging
from phyai_core.rtc import MODES, RtcConfig, build_tables
from phyai_core.types import Leftover
from phyai_core.validity import Lifetime

CPU = torch.device("cpu")
SPEC = make_spec(rtc_modes=tuple(MODES))
GENERATOR = np.random.default_rng(3)
MIX = GENERATOR.standard_normal((8, 8)).astype(np.float32) * 0.3
NOISE = GENERATOR.standard_normal((4, 8, 3), dtype=np.float32)


class PromptedFlow(LinearFlow):
    """The prompt's length and tokens shift the field; counts how often a prompt is embedded."""

    prompt_buckets = (2, 4)
    lifetimes: ClassVar = {**LinearFlow.lifetimes, "prompt_embedding": Lifetime.PROMPT}

    def __init__(self, *args):
        super().__init__(*args)
        self.embedded = 0

    def preprocess(self, obs):
        ids = [ord(letter) for letter in obs.prompt]
        length = 2 if len(ids) <= 2 else 4
        tokens = torch.tensor([ids + [0] * (length - len(ids))], dtype=torch.int64)
        return {**super().preprocess(obs), "tokens": tokens, "token_mask": tokens > 0}

    def pad_prompt(self, inputs, length):
        more = (0, length - inputs["tokens"].shape[1])
        pad = torch.nn.functional.pad
        return {**inputs, "tokens": pad(inputs["tokens"], more), "token_mask": pad(inputs["token_mask"], more)}

    def embed_prompt(self, inputs):
        self.embedded += 1
        return inputs["tokens"] * 0.01

    def encode_prefix(self, inputs):
        words = (inputs["prompt_embedding"] * inputs["token_mask"]).sum(1)
        return super().encode_prefix(inputs) + words[:, None, None]


class ContrastingFlow(PromptedFlow):
    """The prompt is embedded against another, constant input."""

    def preprocess(self, obs):
        return {**super().preprocess(obs), "empty_tokens": torch.tensor([[32]])}

    def embed_prompt(self, inputs):
        return super().embed_prompt(inputs) - inputs["empty_tokens"] * 0.01


class Uploaded(Staging):
    """The device's memory is another one than the host's, on a CPU too."""

    def __init__(self, *args):
        super().__init__(*args)
        self._device_block = torch.zeros_like(self._host_block)
        fields = {name: Field(array.shape, array.dtype) for name, array in self.host.items()}
        self.device = Packing(fields).tensors(self._device_block)


def make_engine(adapter_type=LinearFlow, batch_sizes=(1, 2, 4), device=CPU, **settings):
    adapter = adapter_type(SPEC, MIX, np.ones(3, np.float32))
    adapter.mix, adapter.drift, adapter.offset = (t.to(device) for t in (adapter.mix, adapter.drift, adapter.offset))
    return Engine(adapter, device, batch_sizes, **settings)


def observe(state, prompt=""):
    return replace(blank_observation(SPEC), state=np.array(state, np.float32), prompt=prompt)


def tables(mode="identity", delay=2, execution_horizon=3, **config):
    rows = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    leftover = Leftover(rows, rows[:, :2], delay, execution_horizon)
    return build_tables(RtcConfig(mode, **config), 8, 5, 3, leftover)


REQUESTS = [
    (observe([0.5, -1.0], "go"), plain_tables(SPEC), NOISE[0]),  # just reset
    (observe([0.0, 2.0], "halt"), tables("identity"), NOISE[1]),
    (observe([1.0, 0.0], "a"), tables("ramp", delay=1), NOISE[2]),
]


@pytest.mark.parametrize("adapter_type", [LinearFlow, PromptedFlow])
def test_each_robot_of_a_batch_gets_what_it_would_get_alone(adapter_type):
    engine = make_engine(adapter_type)
    alone = [make_engine(adapter_type).infer(*request).latent for request in REQUESTS]
    for count in (1, 2, 3):
        together = engine.run([engine.preprocess(*request) for request in REQUESTS[:count]])
        for result, expected in zip(together, alone, strict=False):
            np.testing.assert_allclose(result.latent, expected, atol=1e-6)
            np.testing.assert_allclose(result.actions, 10 * result.latent[:, :2])


def test_nothing_of_a_request_reaches_the_next():
    engine = make_engine(PromptedFlow)
    first = engine.infer(*REQUESTS[1])
    kept = first.latent.copy()
    engine.run([engine.preprocess(*request) for request in REQUESTS])
    engine.infer(*REQUESTS[0])
    np.testing.assert_array_equal(first.latent, kept)
    np.testing.assert_array_equal(engine.infer(*REQUESTS[1]).latent, kept)


def test_rtc_changes_the_contents_of_tables_and_nothing_else():
    engine = make_engine(batch_sizes=(1,))
    engine.warm_up(1)
    slots = dict(engine.runner.slots)
    results = set()
    for mode in MODES:
        for delay, horizon, schedule in ((0, 3, "exp"), (2, 3, "exp"), (2, 5, "linear")):
            engine.adapter.flow_times.clear()
            made = tables(mode, delay, horizon, schedule=schedule)
            results.add(engine.infer(observe([0.1, 0.2]), made, NOISE[0]).latent.tobytes())
            assert engine.adapter.flow_times == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert len(results) >= 8  # they do differ
    assert engine.runner.slots == slots


def test_a_prompt_is_embedded_once_until_it_changes():
    engine = make_engine(PromptedFlow, batch_sizes=(1,))
    results = []
    for prompt, embedded in (("go", 1), ("go", 1), ("no", 2), ("on", 3), ("go", 4)):
        results.append(engine.infer(observe([0.5, -1.0], prompt), plain_tables(SPEC), NOISE[0]).latent)
        assert engine.adapter.embedded == embedded
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[4])
    assert not np.allclose(results[0], results[2])


def test_a_prompt_is_embedded_from_what_came_with_it(monkeypatch):
    """With the very first request, when nothing else has been moved to the device yet."""
    request = observe([0.5, -1.0], "go"), plain_tables(SPEC), NOISE[0]
    expected = make_engine(ContrastingFlow, batch_sizes=(1,)).infer(*request).latent
    monkeypatch.setattr("phyai_core.slot.Staging", Uploaded)
    np.testing.assert_array_equal(make_engine(ContrastingFlow, batch_sizes=(1,)).infer(*request).latent, expected)


class FusedFlow(LinearFlow):
    """Brings its own launches: they write what they did into one buffer, which the last one hands back."""

    def fuse(self, inputs, given):
        self.fused = getattr(self, "fused", 0) + 1
        out = torch.zeros_like(given.noise)
        return {"prefix": lambda: out.copy_(inputs["state"][:, :1, None]), "denoise": lambda: out.add_(given.noise)}

    def encode_prefix(self, inputs):
        raise AssertionError("the launches stand in for it")


def test_launches_of_the_adapter_replace_its_methods_once_per_shape():
    engine = make_engine(FusedFlow)
    for count in (1, 2, 1, 2):
        results = engine.run([engine.preprocess(*request) for request in REQUESTS[:count]])
        for (obs, _, noise), result in zip(REQUESTS, results, strict=False):
            np.testing.assert_array_equal(result.latent, noise + obs.state[0])
            assert list(result.stages_s) == ["preprocess", "prefix", "denoise", "postprocess"]
    assert engine.adapter.fused == 2


def test_guidance_by_gradients_does_not_use_the_launches():
    adapter = FusedFlow(SPEC, MIX)
    with pytest.raises(AssertionError, match="stand in for it"):
        Engine(adapter, CPU, guidance="fd").infer(*REQUESTS[0])


def test_shapes_that_were_not_prepared_are_refused_in_words():
    engine = make_engine(batch_sizes=(1, 2))
    with pytest.raises(ValueError, match=r"batch: 3 requests given, prepared for at most 2"):
        engine.run([engine.preprocess(*request) for request in REQUESTS])
    with pytest.raises(ValueError, match=r"input state: float32 \[1, 3\] given, .* prepared for float32 \[1, 2\]"):
        engine.infer(observe([1.0, 2.0, 3.0]), plain_tables(SPEC), NOISE[0])
    engine = make_engine(PromptedFlow)
    with pytest.raises(ValueError, match=r"prompt: padded to 5 tokens, allowed are \[2, 4\]"):
        prepared = engine.preprocess(*REQUESTS[0])
        longer = replace(prepared, job=prepared.job._replace(inputs=engine.adapter.pad_prompt(prepared.job.inputs, 5)))
        engine.run([longer])


def test_close_gives_the_buffers_back():
    engine = make_engine()
    engine.warm_up(1)
    assert len(engine.runner.slots) == 3
    engine.close()
    assert not engine.runner.slots


class CapturableFlow(LinearFlow):
    """Without the host's record of flow times, which a graph cannot hold."""

    def denoise_step(self, prefix, latents, flow_time):
        return self.mix @ latents + self.drift * flow_time[..., None] + self.offset + prefix


class CapturablePromptedFlow(CapturableFlow, PromptedFlow):
    """Both."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("adapter_type", [CapturableFlow, CapturablePromptedFlow])
def test_captured_graphs_agree_with_eager_runs(adapter_type):
    device = resolve_device("cuda")
    captured, eager = (
        make_engine(adapter_type, device=device),
        make_engine(adapter_type, device=device, use_graphs=False),
    )
    seen = []
    captured.warm_up(2, lambda done, total: seen.append((done, total)))
    graphs = 3 * max(1, len(captured.adapter.prompt_buckets))
    assert seen == [(done, graphs + 2) for done in range(1, graphs + 3)]
    before = [slot.graph for slot in captured.runner.slots.values()]
    assert None not in before
    for count in (3, 1, 2, 3):
        results = [
            engine.run([engine.preprocess(*request) for request in REQUESTS[:count]]) for engine in (captured, eager)
        ]
        for one, other in zip(*results, strict=True):
            np.testing.assert_allclose(one.latent, other.latent, atol=1e-6)
            assert list(one.stages_s) == ["preprocess", "prefix", "denoise", "postprocess"]
            assert min(one.stages_s.values()) > 0
    assert [slot.graph for slot in captured.runner.slots.values()] == before
