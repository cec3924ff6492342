"""Guards against: a pass that leaves out, repeats or reorders a launch, a buffer that is read after it was used again,
a last layer that does more or less than keys and values, and FP8 weights that change more than rounding does.
"""

from __future__ import annotations

import pytest
import torch
from comparison import draw, relative_error
from torch.nn.functional import gelu, layer_norm

from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.prefix_pass import PrefixPass, pack_layer
from phyai_kernels.vision_pass import Affine, VisionBlock, VisionPass

CPU = torch.device("cpu")
HEADS, DIM, WIDTH, MLP_WIDTH = 3, 32, 128, 192


@pytest.fixture
def make():
    generator = torch.Generator().manual_seed(5)
    return lambda *shape, scale=1.0: draw(generator, *shape, scale=scale)


def make_layers(make, depth):
    """Weights of the layers as a checkpoint has them, the last one reduced to keys and values."""

    def weight(rows, columns):
        return make(rows, columns, scale=columns**-0.5)

    full = [
        {
            "attention_norm": make(WIDTH, scale=0.1),
            "qkv": weight((HEADS + 2) * DIM, WIDTH),
            "out": weight(WIDTH, HEADS * DIM),
            "mlp_norm": make(WIDTH, scale=0.1),
            "gate": weight(MLP_WIDTH, WIDTH),
            "up": weight(MLP_WIDTH, WIDTH),
            "down": weight(WIDTH, MLP_WIDTH),
        }
        for _ in range(depth - 1)
    ]
    return [*full, {"attention_norm": make(WIDTH, scale=0.1), "qkv": weight(2 * DIM, WIDTH)}]


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def rotate(x, rotary):
    cos, sin = rotary[:, : x.shape[1]].unsqueeze(2)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def prefix_formula(x, layers, rotary, lengths):
    """[(k, v)] of every layer; x [B, T, D]."""
    visible = torch.arange(x.shape[1]) < lengths[:, None]
    cache = []
    for layer in layers:
        heads = (rms(x, layer["attention_norm"]) @ layer["qkv"].T).unflatten(-1, (-1, DIM))
        turned = rotate(heads[:, :, :-1], rotary)
        k, v = turned[:, :, -1], heads[:, :, -1]
        cache.append((k, v))
        if "out" in layer:
            scores = torch.einsum("btnd,bsd->bnts", turned[:, :, :-1], k) * DIM**-0.5
            weights = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(-1)
            x = x + torch.einsum("bnts,bsd->btnd", weights, v).flatten(2) @ layer["out"].T
            normed = rms(x, layer["mlp_norm"])
            hidden = gelu(normed @ layer["gate"].T, approximate="tanh") * (normed @ layer["up"].T)
            x = x + hidden @ layer["down"].T
    return cache


@pytest.mark.parametrize(("fp8", "tolerance"), [(False, 1e-5), (True, 0.15)])
def test_a_prefix_pass_leaves_the_keys_and_values_of_the_formula(make, fp8, tolerance):
    layers, tokens, lengths = make_layers(make, 3), 11, torch.tensor([11, 6], dtype=torch.int32)
    angle = make(20, DIM // 2)
    rotary, x = torch.stack([angle.cos(), angle.sin()]), make(2, tokens, WIDTH)
    keys, values = torch.zeros(2, 3, 2, 16, DIM)
    packed = [pack_layer(**layer, fp8=fp8) for layer in layers]
    run = PrefixPass(packed, keys, values, lengths, rotary, tokens, Dispatcher(CPU))
    for _ in range(2):  # the second run starts from what the first left behind
        run.x.copy_(x.flatten(0, 1))
        run.run()
    for index, (k, v) in enumerate(prefix_formula(x, layers, rotary, lengths)):
        for robot, end in enumerate(lengths.tolist()):
            assert relative_error(keys[index, robot, :end], k[robot, :end]) < tolerance
            assert relative_error(values[index, robot, :end], v[robot, :end]) < tolerance


def test_a_vision_pass_is_the_formula(make):
    images, tokens, width, heads = 2, 9, 48, 4

    def affine(rows, columns=None):
        return Affine(make(rows, columns, scale=columns**-0.5) if columns else make(rows), make(rows, scale=0.1))

    blocks = [
        VisionBlock(
            affine(width),
            affine(3 * width, width),
            affine(width, width),
            affine(width),
            affine(100, width),
            affine(width, 100),
        )
        for _ in range(2)
    ]
    norm, project = affine(width), affine(64, width)
    start, prefix = make(images * tokens, width), torch.full((30, 64), float("nan"))
    run = VisionPass(blocks, norm, project, images, heads, start.clone(), prefix[: images * tokens], Dispatcher(CPU))
    run.run()

    x = start.view(images, tokens, width)
    for block in blocks:
        qkv = layer_norm(x, (width,), *block.norm1, 1e-6) @ block.qkv.weight.T + block.qkv.bias
        q, k, v = (part.unflatten(-1, (heads, -1)) for part in qkv.chunk(3, -1))
        weights = (torch.einsum("btnd,bsnd->bnts", q, k) * (width // heads) ** -0.5).softmax(-1)
        attended = torch.einsum("bnts,bsnd->btnd", weights, v).flatten(2)
        x = x + attended @ block.out.weight.T + block.out.bias
        hidden = gelu(
            layer_norm(x, (width,), *block.norm2, 1e-6) @ block.fc1.weight.T + block.fc1.bias, approximate="tanh"
        )
        x = x + hidden @ block.fc2.weight.T + block.fc2.bias
    expected = layer_norm(x, (width,), *norm, 1e-6) @ project.weight.T + project.bias
    assert relative_error(prefix[: images * tokens], expected.flatten(0, 1)) < 1e-5
    assert prefix[images * tokens :].isnan().all()
