"""Guards against: a hybrid backbone whose numbers are not upstream's, whole or token by token; a prompt whose padding
is seen; images stretched or cut up otherwise; a backbone without a head taken for a policy; options not checked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from adapter_contract import AdapterContract
from pi_goldens import MODELS, edit_json, edit_tensors, tensors
from PIL import Image

from phyai_adapters import load_adapter
from phyai_adapters._deployment import read_options
from phyai_adapters._minicpm_files import TEXT, TOWER
from phyai_adapters._minicpm_v import MiniCpmV, count_text, cut_rows
from phyai_adapters.description import describe_checkpoint
from phyai_adapters.detection import detect_adapter
from phyai_adapters.fixtures import trace_recording
from phyai_adapters.minicpm import MiniCpm
from phyai_core.engine import Engine
from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Leftover, Observation
from phyai_core.verification import Tolerance, check_stages, read_recording
from phyai_kernels.causal_conv import CAUSAL_CONV
from phyai_kernels.gated_delta import GATED_DELTA

NAME = "minicpm_v46_backbone"
FOLDER = MODELS / NAME
CPU = torch.device("cpu")
ROUNDING = MiniCpm.rounding


@cache
def loaded():
    return load_adapter("minicpm", FOLDER, CPU)


@pytest.fixture
def folder(tmp_path):
    """The checkpoint, to be changed."""
    target = tmp_path / "minicpm"
    target.mkdir()
    for name in ("model.safetensors", "action_head.safetensors", *(file.name for file in FOLDER.glob("*.json"))):
        shutil.copyfile(FOLDER / name, target / name)
    return target


def refused(folder, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_adapter("minicpm", folder, CPU)


def near(value, name: str, file: str = "intermediates", atol: float = ROUNDING) -> None:
    torch.testing.assert_close(value, tensors(NAME, file)[name], atol=atol, rtol=0)


class TestMiniCpm(AdapterContract):
    @pytest.fixture
    def adapter(self):
        return loaded()

    def make_observation(self, seed: int) -> Observation:
        rng = np.random.default_rng(seed)
        frames = {key: rng.integers(0, 256, (96, 128, 3), np.uint8) for key in ("front", "wrist")}
        state = rng.uniform(-1, 1, 4).astype(np.float32)
        return Observation(0, frames, state, np.zeros(4, np.float32), prompt=f"task {seed}")

    def test_every_recorded_stage_is_reproduced(self, adapter):
        recording = read_recording(FOLDER)
        stages = list(trace_recording(adapter, recording.inputs, CPU))
        checks = check_stages(stages, recording.stages, Tolerance(absolute=ROUNDING))
        assert [check for check in checks if not check.ok] == []
        assert [check.name for check in checks][-2:] == ["layer.3.out", "last_hidden_state"] and len(checks) == 7
        torch.testing.assert_close(stages[-1].value, stages[-2].value, atol=1e-5, rtol=0)  # the engine's chunk

    def test_padding_of_the_prompt_changes_nothing(self, adapter):
        padded = adapter.preprocess(self.make_observation(0))
        real = padded["text_mask"][0]
        bare = {**padded, **{name: padded[name][:, real] for name in ("text", "text_mask")}}
        assert bare["text"].shape[1] < padded["text"].shape[1]
        whole, cut = (adapter.predict(adapter.encode_prefix(x), self.noise(adapter)) for x in (padded, bare))
        torch.testing.assert_close(whole, cut, atol=1e-5, rtol=0)

    def test_images_and_task_stand_in_the_template(self, adapter):
        inputs = adapter.preprocess(self.make_observation(7))
        ids = inputs["text"][0][inputs["text_mask"][0]].tolist()
        text = "".join(chr(i - 3) if i < 259 else f"<{i}>" for i in ids)
        picture = "<302>" + "<300>" * 4 + "<303>"  # 8 x 8 patches
        assert text == f"<|im_start|>user\n{picture * 2}task 7<|im_end|>\n<|im_start|>assistant\n"

    def test_frames_are_stretched_by_pillow(self, adapter):
        obs = self.make_observation(0)
        expected = np.asarray(Image.fromarray(obs.images["front"]).resize((128, 128), Image.Resampling.BICUBIC))
        np.testing.assert_array_equal(adapter.preprocess(obs)["image.front"][0], expected)

    def test_a_prompt_that_is_too_long_is_cut_with_a_warning(self, adapter):
        obs = replace(self.make_observation(0), prompt="x" * 70)
        with pytest.warns(UserWarning, match="cut to the 64 tokens"):
            assert adapter.preprocess(obs)["text_mask"].all()

    def test_the_embodiment_chooses_the_layers(self, adapter):
        inputs, noise = adapter.preprocess(self.make_observation(0)), self.noise(adapter)
        chunks = [
            adapter.predict(adapter.encode_prefix({**inputs, "embodiment": torch.tensor([n])}), noise) for n in (1, 2)
        ]
        assert inputs["embodiment"].tolist() == [1] and not torch.allclose(*chunks)


def test_its_chunks_can_be_tied_by_frozen_rows():
    spec = loaded().spec
    engine, obs = Engine(loaded(), CPU), TestMiniCpm().make_observation(0)
    rows = np.full((4, spec.latent_dim), 0.5, np.float32)
    leftover = Leftover(rows, rows[:, : spec.action_dim], delay=2, execution_horizon=2)
    noise = np.zeros(spec.noise_shape, np.float32)
    tied = engine.infer(obs, tables_for(RtcConfig("hard"), spec, leftover), noise)
    assert spec.rtc_modes == ("none", "hard")
    np.testing.assert_allclose(tied.latent[:2, : spec.action_dim], 0.5)  # padding is not tied


def test_the_delta_rule_is_upstreams():
    """The record has the decay g and beta; the operation makes them from rates: softplus(a) = -g, sigmoid(b) = beta."""
    recorded = tensors(NAME, "intermediates")
    q, k, v, g, beta = (recorded[f"gdn.{name}"] for name in ("q", "k", "v", "g", "beta"))
    a, b = torch.log(torch.expm1(-g.double())).float(), torch.logit(beta.double()).float()
    out, state = torch.empty_like(v), torch.zeros(1, 4, 16, 16)
    GATED_DELTA.reference(q, k, v, a, b, torch.zeros(4), torch.zeros(4), state, out)
    near(out, "gdn.out", atol=1e-6)
    near(state, "gdn.final_state", atol=1e-6)


def test_the_convolution_is_upstreams():
    weight, x = (tensors(NAME, "intermediates")[f"conv.{name}"] for name in "wx")
    parts = [torch.empty(1, 20, width) for width in (4, 4, 8)]
    CAUSAL_CONV.reference(x.mT.contiguous(), weight, *parts)
    near(torch.cat(parts, dim=2).mT, "conv.silu_out", atol=1e-6)


@torch.no_grad()
def test_token_by_token_it_goes_on_where_it_was():
    adapter = loaded()
    text, inputs = adapter.network.backbone.language_model, tensors(NAME, "inputs")
    x = adapter.see(adapter.recorded_inputs(inputs))
    _, memories = text(x[:, :80], count_text(0, 80, 1, CPU))
    for index in range(80, 90):
        hidden, memories = text(x[:, index : index + 1], count_text(index, 1, 1, CPU), memories)
    last = tensors(NAME, "outputs")["last_hidden_state"][:, -1:]
    torch.testing.assert_close(hidden, last, atol=ROUNDING, rtol=0)
    hidden, _ = text(text.embed_tokens(inputs["decode_token"]), count_text(90, 1, 1, CPU), memories)
    near(hidden, "decode1.last_hidden_state", "outputs")


def test_patches_are_cut_row_by_row():
    image = torch.arange(3 * 4 * 6, dtype=torch.float32).reshape(1, 3, 4, 6)
    cut = cut_rows(image, 2)
    assert cut.shape == (1, 6, 12)
    torch.testing.assert_close(cut[0, 4], image[0, :, 2:4, 2:4].flatten())


def test_the_full_backbone_has_the_published_number_of_parameters():
    with torch.device("meta"):
        network = MiniCpmV(TOWER, TEXT)
    assert 1290 < sum(x.numel() for x in network.parameters()) / 1e6 < 1310  # 1.30 billion


def test_it_is_recognised_and_described():
    assert detect_adapter(FOLDER) == "minicpm"
    found = describe_checkpoint(FOLDER, "minicpm")
    assert found.spec == loaded().spec and found.prompt_tokens == 64
    assert found.parameters == sum(parameter.numel() for parameter in loaded().network.parameters())


def test_a_backbone_alone_is_no_policy(folder):
    (folder / "action_head.safetensors").unlink()
    refused(folder, "has no weights of an action head. MiniCPM-V 4.6 alone is no policy: put action_head.safetensors")


def test_a_head_among_the_weights_of_the_backbone_is_found(folder):
    head = tensors(NAME, "action_head")
    (folder / "action_head.safetensors").unlink()
    edit_tensors(
        folder / "model.safetensors", lambda weights: {**weights, **{f"action_head.{k}": v for k, v in head.items()}}
    )
    adapter = load_adapter("minicpm", folder, CPU)
    for name, weight in adapter.head.state_dict().items():
        torch.testing.assert_close(weight, head[name], atol=0, rtol=0)
    edit_tensors(
        folder / "model.safetensors", lambda weights: {**weights, "action_head.state_encoder.W": torch.ones(1)}
    )
    refused(folder, "1 unexpected: state_encoder.W")


def test_what_the_user_has_to_say_is_named(folder):
    for name, match in (
        ("rate_hz", "rate_hz: .* does not say"),
        ("cameras", r'cameras: the checkpoint does not say them; .*\{"cameras": \["front"\]\}'),
        ("state_names", "state_names: the checkpoint does not say them"),
        ("embodiment", "embodiment: None is none of those the head knows; write the number of yours, 0 to 2"),
        ("image_tokens", "image_tokens: the tokenizer has no <image>, </image>"),
    ):
        content = json.loads((FOLDER / "phyai.json").read_text())
        (folder / "phyai.json").write_text(json.dumps({key: value for key, value in content.items() if key != name}))
        refused(folder, match)


def test_wrong_options_and_variants_are_named(folder):
    edit_json(folder / "phyai.json", embodiment="3")
    refused(folder, "embodiment: '3' is none")
    edit_json(folder / "phyai.json", embodiment="1", action_names=[f"joint_{index}" for index in range(11)])
    refused(folder, "action_names: 11 names given; the head takes at most 10")
    edit_json(folder / "phyai.json", action_names=["grip"], asset_id="arm")
    refused(folder, "asset_id has no meaning for minicpm")
    edit_json(folder / "phyai.json", asset_id=None)
    edit_json(folder / "config.json", downsample_mode="4x")
    refused(folder, "downsample_mode is '4x'; supported: '16x'")
    edit_json(folder / "config.json", model_type="minicpmo")
    refused(folder, "model_type is 'minicpmo'; supported: 'minicpmv4_6'")


def test_bfloat16_stays_near_float32():
    adapter = MiniCpm.load(FOLDER, CPU, replace(read_options(FOLDER), dtype="bfloat16"))
    inputs = adapter.recorded_inputs(tensors(NAME, "inputs"))
    noise = torch.randn(1, 6, 10, generator=torch.Generator().manual_seed(0))
    chunk, expected = (policy.predict(policy.encode_prefix(inputs), noise) for policy in (adapter, loaded()))
    assert (chunk - expected).norm() < 5e-2 * expected.norm()
