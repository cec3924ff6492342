"""Guards against: a hybrid backbone whose numbers are not upstream's, whole, by chunks or token by token; and a folder
of MiniCPM-Robot taken for a policy that can be run."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from pi_goldens import MODELS, edit_json, tensors

from phyai_adapters._minicpm_v import MiniCpmV, count_text, cut_rows
from phyai_adapters.detection import detect_adapter
from phyai_adapters.minicpm import TEXT, TOWER, MiniCpmBackbone
from phyai_kernels.causal_conv import CAUSAL_CONV
from phyai_kernels.gated_delta import GATED_DELTA

NAME = "minicpm_v46_backbone"
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


@cache
def loaded():
    return MiniCpmBackbone.load(MODELS / NAME, CPU)


def near(value, name: str, file: str = "intermediates", atol: float = 2e-4) -> None:
    torch.testing.assert_close(value, tensors(NAME, file)[name], atol=atol, rtol=0)


def patches():
    """The strip of 16 x 16 patches that upstream takes, as two images [1, 2, 64, .]."""
    strip = tensors(NAME, "inputs")["pixel_values"][0].unflatten(2, (-1, 16))
    return strip.permute(2, 0, 1, 3).flatten(1).unflatten(0, (2, 64))[None]


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


def test_every_recorded_stage_is_reproduced():
    backbone, inputs = loaded(), tensors(NAME, "inputs")
    network, tokens, seen = backbone.network, inputs["input_ids"], patches()
    near(network.vision_tower(seen[0], (8, 8)).reshape(1, 32, 32), "vision.last_hidden")
    images = network.see(seen[0], (8, 8)).flatten(0, 1)
    near(images, "image_features")
    x = network.embed(tokens, tokens == backbone.image_token, images[None])
    for index, (hidden, _) in enumerate(network.language_model.states(x, count_text(0, 90, 1, CPU))):
        near(hidden, f"layer.{index}.out")
    features = backbone.features({"tokens": tokens, "patches": seen}, (8, 8))
    near(features, "last_hidden_state", "outputs")


def test_token_by_token_it_goes_on_where_it_was():
    backbone, inputs = loaded(), tensors(NAME, "inputs")
    text, tokens = backbone.network.language_model, inputs["input_ids"]
    images = backbone.network.see(patches()[0], (8, 8)).flatten(0, 1)[None]
    x = backbone.network.embed(tokens, tokens == backbone.image_token, images)
    _, memories = text(x[:, :80], count_text(0, 80, 1, CPU))
    for index in range(80, 90):
        hidden, memories = text(x[:, index : index + 1], count_text(index, 1, 1, CPU), memories)
    torch.testing.assert_close(hidden[0, 0], tensors(NAME, "outputs")["last_hidden_state"][0, -1], atol=2e-4, rtol=0)
    hidden, _ = text(text.embed_tokens(inputs["decode_token"]), count_text(90, 1, 1, CPU), memories)
    near(hidden, "decode1.last_hidden_state", "outputs")


def test_patches_are_cut_row_by_row():
    image = torch.arange(3 * 4 * 6, dtype=torch.float32).reshape(1, 3, 4, 6)
    cut = cut_rows(image, 2)
    assert cut.shape == (1, 6, 12)
    torch.testing.assert_close(cut[0, 4], image[0, :, 2:4, 2:4].flatten())


def test_the_full_size_has_the_published_number_of_parameters():
    with torch.device("meta"):
        network = MiniCpmV(TOWER, TEXT)
    parts = {name: sum(x.numel() for x in part.parameters()) / 1e6 for name, part in network.named_children()}
    assert 1290 < sum(parts.values()) < 1310, parts  # 1.30 billion


def test_it_is_no_policy_and_that_is_said(tmp_path):
    with pytest.raises(ValueError, match="The action head of MiniCPM-Robot has no public source"):
        detect_adapter(MODELS / NAME)
    edit_json(tmp_path / "config.json", model_type="minicpmv4_6", downsample_mode="4x")
    with pytest.raises(ValueError, match="downsample_mode is '4x'; supported: '16x'"):
        MiniCpmBackbone.load(tmp_path, CPU)
    edit_json(tmp_path / "config.json", model_type="minicpmo")
    with pytest.raises(ValueError, match="model_type is 'minicpmo'; supported: 'minicpmv4_6'"):
        MiniCpmBackbone.load(tmp_path, CPU)
