"""Guards, for FP8 layers, against: a scale for the wrong row or token, one large token that spoils the others, weights
that cannot be loaded part by part, and a GPU too old for them that only fails in the first inference.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from comparison import draw, relative_error
from torch import nn

from phyai_core.layers.fp8 import Fp8Linear, refuse_fp8
from phyai_core.layers.gemma import GemmaLayer, GemmaSizes
from phyai_core.layers.rotary import RotaryTable


@pytest.fixture
def make():
    generator = torch.Generator().manual_seed(4)
    return lambda *shape: draw(generator, *shape)


def linear(weight):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data.copy_(weight)
    return layer


def test_every_row_and_every_token_has_a_scale_of_its_own(make):
    rows, tokens = torch.tensor([1e-3, 1.0, 300.0, 7.0]), torch.tensor([1e-4, 1.0, 5e3])
    plain = linear(make(4, 64) * rows[:, None])
    x = make(2, 3, 64) * tokens[:, None]
    rounded = Fp8Linear.rounded(plain)
    result, expected = rounded(x), plain(x)
    assert result.shape == (2, 3, 4) and result.dtype == torch.float32
    error = (result - expected).detach() / rows / tokens[:, None]  # in units of every product's own size, about 8
    assert error.abs().amax(dim=(0, 2)).max() < 1.0 and error.abs().amax(dim=(0, 1)).min() > 1e-2
    assert rounded.weight.dtype == torch.float8_e4m3fn
    largest = rounded.weight.float().abs().amax(1)
    torch.testing.assert_close(largest, torch.full((4,), 448.0))


def test_bfloat16_goes_in_and_comes_out(make):
    plain = linear(make(32, 64)).bfloat16()
    assert Fp8Linear.rounded(plain)(make(5, 64).bfloat16()).dtype == torch.bfloat16


def test_a_layer_without_memory_is_filled_in_parts(make):
    full = Fp8Linear.rounded(linear(make(6, 64)))
    with torch.device("meta"):
        empty = nn.ModuleList([Fp8Linear(64, 6)])
    (filled,) = empty.to_empty(device="cpu").requires_grad_(False)
    for name in ("weight", "scale"):
        for start in (0, 1):
            getattr(filled, name)[start::2].copy_(getattr(full, name)[start::2])
    x = make(5, 64)
    assert torch.equal(filled(x), full(x))


def test_a_rounded_decoder_layer_stays_near_the_plain_one(make):
    layer = GemmaLayer(GemmaSizes(64, 1, 96, 4, 1, 16), torch.float32).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(make(*parameter.shape) * 0.1)
    x, rotary = make(1, 5, 64), RotaryTable(8, 16, torch.device("cpu"))(torch.arange(5)[None])
    out = layer.out
    plain, own = layer(x, rotary)
    layer.round_to_fp8()
    rounded, own_rounded = layer(x, rotary)
    assert layer.out is out and isinstance(layer.down, Fp8Linear)
    assert 1e-4 < relative_error(rounded, plain) < 0.05 and 1e-4 < relative_error(own_rounded.k, own.k) < 0.05


def test_a_gpu_without_fp8_is_refused_in_a_sentence(monkeypatch):
    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert "need compute capability 8.9 (Ada, Hopper or newer), this GPU has 8.6" in refuse_fp8(gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert refuse_fp8(gpu) is None and refuse_fp8(torch.device("cpu")) is None
