"""Guards against a norm, rotation, mask or fused projection that differs from the published formula.

Each layer is compared with its formula written out in float64.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from phyai_core.layers.attention import attend, attend_by_products
from phyai_core.layers.gemma import GemmaLayer, GemmaSizes, Modulation
from phyai_core.layers.norm import AdaRMSNorm, RMSNorm
from phyai_core.layers.rotary import Rotary, RotaryTable, rotate
from phyai_core.layers.siglip import SiglipSizes, SiglipTower

CPU = torch.device("cpu")
SIZES = GemmaSizes(width=12, depth=1, mlp_width=20, num_heads=4, num_kv_heads=2, head_dim=6)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def with_random_weights(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.requires_grad_(False)


def rms(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rotary_at(positions: Tensor) -> Rotary:
    return RotaryTable(64, SIZES.head_dim, CPU)(positions)


def close(value: Tensor, expected: Tensor, atol: float = 2e-6) -> None:
    torch.testing.assert_close(value.double(), expected.double(), atol=atol, rtol=1e-5)


def test_plain_norm_adds_one_to_its_weight_and_computes_in_float32():
    norm, x = with_random_weights(RMSNorm(12)), torch.randn(2, 3, 12)
    out, gate = norm(x, None)
    close(out, rms(x.double()) * (1 + norm.weight.double()))
    assert gate is None
    large = 300 * torch.randn(2, 3, 12)
    assert norm(large.bfloat16())[0].dtype == torch.bfloat16
    close(norm(large.bfloat16())[0], norm(large.bfloat16().float())[0], atol=0.05)


def test_adaptive_norm_takes_scale_shift_gate_in_this_order():
    x, modulation = torch.randn(2, 3, 12), torch.randn(2, 3, 36)
    scale, shift, gate = modulation.double().split(12, dim=-1)
    out, given = AdaRMSNorm()(x, modulation)
    close(out, rms(x.double()) * (1 + scale) + shift)
    close(given, gate)


def test_rotation_turns_halves_against_each_other_by_position():
    positions, x = torch.tensor([[0, 3, 50]]), torch.randn(1, 3, 4, 6)
    frequency = 1e4 ** (-torch.arange(3, dtype=torch.float64) * 2 / 6)
    turn = torch.polar(torch.ones(3, 3, dtype=torch.float64), positions[0][:, None] * frequency)
    turned = torch.complex(x[..., :3].double(), x[..., 3:].double()) * turn[None, :, None]
    close(rotate(x, rotary_at(positions)), torch.cat((turned.real, turned.imag), dim=-1), atol=1e-5)


def test_scores_depend_on_distance_only():
    q, k = torch.randn(2, 1, 1, 1, 6)

    def score(query: int, key: int) -> Tensor:
        return (rotate(q, rotary_at(torch.tensor([[query]]))) * rotate(k, rotary_at(torch.tensor([[key]])))).sum()

    close(score(5, 0), score(45, 40), atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_shares_key_heads_and_hides_masked_keys(masked):
    q, k, v = torch.randn(2, 5, 4, 6), torch.randn(2, 7, 2, 6), torch.randn(2, 7, 2, 6)
    mask = torch.rand(2, 7) < 0.6 if masked else torch.ones(2, 7, dtype=torch.bool)
    mask[:, 0] = True
    expected = torch.empty(2, 5, 4, 6, dtype=torch.float64)
    for head in range(4):
        scores = q[:, :, head].double() @ k[:, :, head // 2].double().transpose(1, 2) / math.sqrt(6)
        weights = scores.masked_fill(~mask[:, None], -math.inf).softmax(-1)
        expected[:, :, head] = weights @ v[:, :, head // 2].double()
    close(attend(q, k, v, mask if masked else None), expected.flatten(2))


def test_layer_is_the_published_formula():
    layer, x = with_random_weights(GemmaLayer(SIZES, torch.float32)), torch.randn(1, 3, 12)
    rotary = rotary_at(torch.arange(3)[None])
    out, own = layer(x, rotary)
    normed = layer.attention_norm(x)[0]
    q, k, v = (normed @ part.T for part in layer.qkv.weight.split([24, 12, 12]))
    q, k = rotate(q.view(1, 3, 4, 6), rotary), rotate(k.view(1, 3, 2, 6), rotary)
    x = x + attend(q, k, v.view(1, 3, 2, 6)) @ layer.out.weight.T
    normed, (gate, up) = layer.mlp_norm(x)[0], (layer.gate_up.weight[start::2] for start in (0, 1))
    x = x + (nn.functional.gelu(normed @ gate.T, approximate="tanh") * (normed @ up.T)) @ layer.down.weight.T
    close(out, x)
    close(own.k, k)
    close(own.v, v.view(1, 3, 2, 6))
    assert own.k.is_contiguous() and own.v.is_contiguous()


def test_tokens_behind_kept_keys_get_what_one_joint_pass_gives():
    """Later tokens see earlier ones, not the reverse: the earlier ones' keys can be kept."""
    layer, x = with_random_weights(GemmaLayer(SIZES, torch.float32)), torch.randn(1, 5, 12)
    joint, all_keys = layer(x, rotary_at(torch.arange(5)[None]))
    _, past = layer(x[:, :3], rotary_at(torch.arange(3)[None]))
    behind, own = layer(x[:, 3:], rotary_at(torch.tensor([[3, 4]])), None, past)
    close(behind, joint[:, 3:])
    close(torch.cat((past.k, own.k), dim=1), all_keys.k)


def test_gates_scale_both_branches():
    layer, x = with_random_weights(GemmaLayer(SIZES, torch.float32, adaptive=True)), torch.randn(1, 3, 12)
    closed, rotary = torch.zeros(1, 3, 36), rotary_at(torch.arange(3)[None])
    assert torch.equal(layer(x, rotary, modulation=Modulation(closed, closed))[0], x)
    opened = closed.clone()
    opened[..., 24:] = 1.0
    outs = [layer(x, rotary, modulation=pair)[0] for pair in (Modulation(opened, closed), Modulation(closed, opened))]
    assert not torch.equal(outs[0], x) and not torch.equal(outs[1], x) and not torch.equal(*outs)


def test_a_last_prefix_layer_holds_no_more_than_it_needs_for_keys():
    whole, last = GemmaLayer(SIZES, torch.float32), GemmaLayer(SIZES, torch.float32, last=True)
    with_random_weights(whole)
    last.load_state_dict({"qkv.weight": whole.qkv.weight[24:], "attention_norm.weight": whole.attention_norm.weight})
    x, rotary = torch.randn(1, 3, 12), rotary_at(torch.arange(3)[None])
    out, own = last(x, rotary)
    assert torch.equal(out, x)
    for value, expected in zip(own, whole(x, rotary)[1], strict=True):
        close(value, expected)


def test_vision_patches_are_a_strided_convolution_and_blocks_the_usual_encoder():
    sizes = SiglipSizes(width=8, depth=1, mlp_width=16, num_heads=2, image_size=12, patch_size=4)
    tower, images = with_random_weights(SiglipTower(sizes, torch.float32)), torch.randn(2, 3, 12, 12)
    weight = tower.patch.weight.view(8, 3, 4, 4)
    x = nn.functional.conv2d(images, weight, tower.patch.bias, stride=4).flatten(2).transpose(1, 2) + tower.position
    reference = nn.TransformerEncoderLayer(
        8, 2, 16, 0.0, lambda y: nn.functional.gelu(y, approximate="tanh"), 1e-6, batch_first=True, norm_first=True
    )
    names = {"self_attn.in_proj_": "qkv.", "self_attn.out_proj.": "out.", "linear1.": "fc1.", "linear2.": "fc2."}
    names |= {"norm1.": "norm1.", "norm2.": "norm2."}
    state = tower.blocks[0].state_dict()
    reference.load_state_dict(
        {theirs + part: state[ours + part] for theirs, ours in names.items() for part in ("weight", "bias")}
    )
    close(tower(images), tower.norm(reference.eval()(x)), atol=1e-5)


def test_attention_by_products_is_the_same_attention():
    q, k, v = torch.randn(2, 2, 12, 6), torch.randn(2, 2, 9, 6), torch.randn(2, 2, 9, 5)
    for queries in (1, 6, 12):  # for all, for each of two heads folded into one, for each
        mask = torch.rand(2, queries, 9) > 0.3
        mask[..., 4] = True
        each = mask.repeat(1, 12 // queries, 1)[:, None]
        expected = nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), each)
        close(attend_by_products(q, k, v, mask), expected)
