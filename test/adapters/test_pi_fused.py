"""Guards, for the fused launches of pi0 and pi0.5, against: another result than the methods give, for any mode of
real-time chunking, camera mask, prompt length and batch; the state token seen too early or too late; weights that are
spoilt for the methods or kept twice; launches where they do not fit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from comparison import relative_error

from phyai_adapters._deployment import Options
from phyai_adapters._paligemma import TINY, PiSizes
from phyai_adapters.pi0 import Pi0
from phyai_adapters.pi05 import Pi05
from phyai_core.bench import random_observation
from phyai_core.engine import Engine, blank_observation
from phyai_core.layers.gemma import GemmaSizes
from phyai_core.layers.siglip import SiglipSizes
from phyai_core.packing import Staging
from phyai_core.program import Program
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.sampler import Conditioning, conditioning_fields, write_conditioning
from phyai_core.stages import HostStageClock
from phyai_core.types import Leftover

CPU = torch.device("cpu")
SIZES = PiSizes(
    SiglipSizes(48, 2, 96, 4, image_size=28),
    GemmaSizes(128, 3, 192, 4, 1, 32),
    GemmaSizes(64, 3, 96, 4, 1, 32),
    vocab=320,
)
GPU_SIZES = PiSizes(  # small, and what the Hopper kernels take
    SiglipSizes(144, 2, 288, 2, image_size=28),
    GemmaSizes(512, 3, 1024, 8, 1, 256),
    GemmaSizes(512, 3, 2048, 4, 1, 256),
    vocab=320,
)
HORIZON, STEPS, WORDS = 5, 4, 9
MODES = ("none", "identity", "hard", "ramp", "trained")


@pytest.fixture(params=[Pi05, Pi0])
def adapter(request):
    return make_adapter(request.param)


def make_adapter(kind, sizes=SIZES, device=CPU):
    """Random weights large enough that every part of the network shows in the result."""
    made = kind.random(sizes, device, Options(action_horizon=HORIZON, num_denoise_steps=STEPS))
    generator = torch.Generator(device).manual_seed(7)
    with torch.no_grad():
        for name, weight in made.network.named_parameters():
            spread = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.2
            weight.normal_(1.0 if "norm" in name and "vision" in name else 0.0, spread, generator=generator)
    if kind is Pi05:
        made.time_tables.normal_(0.0, 0.3, generator=generator)
    else:
        made = kind(made_parts(made))
    made.spec = replace(made.spec, rtc_max_delay=3)
    made.fuses_everywhere = device == CPU
    made._fused = None  # on a GPU: packed before these weights were drawn
    return made


def made_parts(adapter):
    """Its parts again, so that tables are computed from the weights that it has now."""
    from phyai_adapters._loading import PiParts

    return PiParts(adapter.spec, adapter.deployment, adapter.network, adapter._tokenizer, adapter.options, None)


def make_inputs(adapter, image_masks, words):
    """Inputs of one robot for each mask: random frames, `words` real tokens each."""
    generator, robots, sizes = torch.Generator().manual_seed(3), len(words), adapter.network.sizes
    frames = (robots, sizes.vision.image_size, sizes.vision.image_size, 3)
    inputs = {
        f"image.{camera.key}": torch.randint(256, frames, generator=generator).to(torch.uint8)
        for camera in adapter.spec.cameras
    }
    inputs["image_mask"] = torch.tensor(image_masks)
    inputs["tokens"] = torch.randint(3, 300, (robots, WORDS), generator=generator)
    inputs["token_mask"] = torch.arange(WORDS) < torch.tensor(words)[:, None]
    if adapter.lead_rows:
        inputs["state"] = torch.randn(robots, sizes.latent_dim, generator=generator)
    return {name: tensor.to(adapter.device) for name, tensor in inputs.items()}


def make_given(adapter, modes):
    """One request for each mode, tied to what is left of a chunk; one dim is left out."""
    spec, generator = adapter.spec, np.random.default_rng(5)
    arrays = Staging(conditioning_fields(spec, len(modes)), CPU, lambda name: False).host
    for row, mode in enumerate(modes):
        latent = generator.standard_normal((4, spec.latent_dim), dtype=np.float32)
        leftover = Leftover(latent, latent[:, : spec.action_dim], 2, 3)
        exclude = (spec.action[2].name,) if mode != "trained" else ()
        tables = tables_for(RtcConfig(mode, exclude=exclude), spec, leftover)
        noise = generator.standard_normal(spec.noise_shape, dtype=np.float32)
        write_conditioning(Conditioning.pick(arrays), row, tables, noise)
    return Conditioning(*(torch.from_numpy(array).to(adapter.device) for array in Conditioning.pick(arrays)))


def run(adapter, inputs, given, fused):
    """A chunk of each robot, [B, H, A'], computed twice: nothing is left behind for the next one, sums are ordered."""
    clock = HostStageClock()
    with torch.inference_mode():
        program = Program(adapter, adapter.device, inputs, given, None, clock, fused)
        first = program.run().clone()
        assert torch.equal(program.run(), first)
    assert list(clock.seconds()) == ["vision", "prefix", "denoise"]
    return first


@pytest.mark.parametrize("mode", MODES)
def test_it_is_what_the_methods_give_in_every_mode_of_rtc(adapter, mode):
    inputs, given = make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, [mode])
    expected = run(adapter, inputs, given, fused=False)
    assert relative_error(run(adapter, inputs, given, fused=True), expected) < 1e-5
    assert relative_error(run(adapter, inputs, given, fused=False), expected) == 0.0


@pytest.mark.parametrize("words", [(WORDS, 4), (1, WORDS)])
@pytest.mark.parametrize(
    "masks", [([True, True, False], [True, True, True]), ([False, True, True], [True, False, False])]
)
def test_absent_cameras_and_short_prompts_leave_no_trace_in_a_batch(adapter, masks, words):
    inputs, given = make_inputs(adapter, masks, words), make_given(adapter, ["identity", "ramp"])
    expected = run(adapter, inputs, given, fused=False)
    assert relative_error(run(adapter, inputs, given, fused=True), expected) < 1e-5


def test_frames_of_another_size_or_type_are_resized_first(adapter):
    inputs, given = make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, ["none"])
    names = [f"image.{camera.key}" for camera in adapter.spec.cameras]
    inputs[names[0]], inputs[names[1]] = inputs[names[0]][:, :20], inputs[names[1]].float() / 255
    expected = run(adapter, inputs, given, fused=False)
    assert relative_error(run(adapter, inputs, given, fused=True), expected) < 1e-5


def test_a_short_prompt_is_the_same_in_a_longer_bucket(adapter):
    inputs, given = make_inputs(adapter, [[True] * 3], [4]), make_given(adapter, ["none"])
    short = {**inputs, "tokens": inputs["tokens"][:, :5], "token_mask": inputs["token_mask"][:, :5]}
    assert relative_error(run(adapter, inputs, given, True), run(adapter, short, given, True)) < 1e-6


def test_the_engine_takes_the_launches_unless_it_is_told_not_to(adapter):
    tables, noise = tables_for(RtcConfig("none"), adapter.spec, None), np.ones(adapter.spec.noise_shape, np.float32)
    latents = {}
    for name, settings in {"fused": {}, "methods": {"fused": False}, "guided": {"guidance": "fd"}}.items():
        adapter._fused = None
        latents[name] = Engine(adapter, CPU, **settings).infer(blank_observation(adapter.spec), tables, noise).latent
        assert (adapter._fused is not None) == (name == "fused")
    assert relative_error(torch.from_numpy(latents["fused"]), torch.from_numpy(latents["methods"])) < 1e-5


def test_weights_are_packed_once_and_shared_with_the_network(adapter):
    inputs, given = make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, ["none"])
    run(adapter, inputs, given, fused=True)
    packed = adapter._fused
    run(adapter, inputs, given, fused=True)
    assert adapter._fused is packed
    expert, prefix = adapter.network.expert.layers[1], adapter.network.vlm.layers[1]
    for name in ("out", "gate_up", "down"):
        assert getattr(expert, name).weight.data_ptr() == getattr(packed.expert, name)[1].data_ptr()
        assert getattr(prefix, name).weight.data_ptr() == getattr(packed.prefix[1], name).values.data_ptr()


def test_fp8_in_the_prefix_changes_the_chunk_a_little(adapter):
    inputs, given = make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, ["none"])
    exact = run(adapter, inputs, given, fused=True)
    adapter._fused = None
    adapter.network.round_prefix()
    rounded = run(adapter, inputs, given, fused=True)
    assert 1e-4 < relative_error(rounded, exact) < 0.1
    assert relative_error(run(adapter, inputs, given, fused=False), rounded) < 1e-2  # only what products take differs


def test_what_it_cannot_or_should_not_run_is_left_to_the_methods_with_a_reason(adapter):
    inputs, given = make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, ["none"])
    adapter.fuses_everywhere = False
    assert adapter.fuse(inputs, given) == {}
    assert "made for bfloat16, not torch.float32" in adapter.dispatcher.explain()
    narrow = replace(TINY, expert=replace(TINY.expert, width=32))
    small = type(adapter).random(narrow, CPU, Options(action_horizon=HORIZON, num_denoise_steps=STEPS))
    small.fuses_everywhere = True
    assert small.fuse({}, given) == {}
    assert "the expert's width is 32, its heads have 16" in small.dispatcher.explain()


def test_every_choice_is_explained(adapter):
    run(adapter, make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, ["none"]), fused=True)
    text = adapter.dispatcher.explain()
    rows = HORIZON + adapter.lead_rows
    assert f"expert_loops [1 robot: {STEPS} steps, {rows} rows over 64 keys, 3 layers of 64 float32] -> refer" in text
    for op in ("pack_prefix", "dense_geglu", "prefix_attention", "image_attention"):
        assert f"{op} [" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [Pi05, Pi0])
class TestOnAGpu:
    """The same with the kernels of the device."""

    @pytest.fixture
    def adapter(self, kind):
        return make_adapter(kind, GPU_SIZES, torch.device("cuda:0"))

    @pytest.mark.parametrize("robots", [1, 2, 4])
    def test_the_kernels_give_what_the_methods_give(self, adapter, robots):
        masks = [[True] * 3, [True, False, True], [False, True, True], [True] * 3][:robots]
        inputs = make_inputs(adapter, masks, [WORDS, 4, 7, 1][:robots])
        given = make_given(adapter, ["identity", "trained", "hard", "ramp"][:robots])
        expected = run(adapter, inputs, given, fused=False)
        for robot, error in enumerate(map(relative_error, run(adapter, inputs, given, fused=True), expected)):
            assert error < 2e-2, (robot, error)

    def test_fp8_products_change_the_chunk_a_little(self, adapter):
        inputs, given = make_inputs(adapter, [[True] * 3], [WORDS]), make_given(adapter, ["none"])
        exact = run(adapter, inputs, given, fused=True)
        adapter._fused = None
        adapter.network.round_prefix()
        assert 1e-4 < relative_error(run(adapter, inputs, given, fused=True), exact) < 0.1

    def test_a_graph_gives_the_bytes_of_the_launches_again_and_again(self, adapter):
        tables, noise = tables_for(RtcConfig("none"), adapter.spec, None), np.ones(adapter.spec.noise_shape, np.float32)
        seen = [random_observation(adapter.spec, prompt, seed) for seed, prompt in enumerate(("go", "go", "come"))]
        eager, graph = Engine(adapter, adapter.device, use_graphs=False), Engine(adapter, adapter.device)
        expected = [eager.infer(obs, tables, noise).latent for obs in seen]
        graph.warm_up(1)
        for run in range(21):
            assert np.array_equal(graph.infer(seen[run % 3], tables, noise).latent, expected[run % 3])
        assert not np.array_equal(expected[0], expected[1]) and not np.array_equal(expected[1], expected[2])
