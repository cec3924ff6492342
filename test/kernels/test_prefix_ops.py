"""Guards against: rotary partners or positions mixed up, K/V written to the wrong rows, keys of the padding that leak
in, a window that looks ahead or wraps to another robot, and parts split at the wrong channel.
"""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned

from phyai_kernels.causal_conv import CAUSAL_CONV
from phyai_kernels.image_attention import HOPPER as HOPPER_IMAGES
from phyai_kernels.image_attention import IMAGE_ATTENTION
from phyai_kernels.image_patches import IMAGE_PATCHES, fold_patches
from phyai_kernels.pack_prefix import PACK_PREFIX
from phyai_kernels.prefix_attention import HOPPER, PREFIX_ATTENTION, SDPA
from phyai_kernels.rotate_and_store import ROTATE_AND_STORE

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def make(where):
    generator = torch.Generator().manual_seed(3)
    return lambda *shape, dtype=torch.float32: draw(generator, *shape, dtype=dtype, device=where)


def test_image_patches_with_folded_weights_are_the_embedding_of_scaled_pixels(make, dtype, where):
    generator, patch = torch.Generator().manual_seed(2), 6
    frames = torch.randint(256, (2, 18, 12, 3), generator=generator).to(where, torch.uint8)
    results = []
    for function in (IMAGE_PATCHES.reference, IMAGE_PATCHES.triton):
        out = poisoned(2, 2, 6, 112, dtype=dtype, device=where)  # one camera of two
        function(frames, out[:, 1], patch)
        assert out[:, 0].isnan().all()
        results.append(out[:, 1])
    assert torch.equal(*results)
    weight, bias = make(5, 3 * patch * patch), make(5)
    pixels = frames.float().permute(0, 3, 1, 2) / 255 * 2 - 1
    expected = torch.nn.functional.conv2d(pixels, weight.view(5, 3, patch, patch), bias, stride=patch).flatten(2)
    folded, folded_bias = fold_patches(weight, bias, torch.float32)
    assert_agrees(results[0].float() @ folded.T + folded_bias, expected.transpose(1, 2))


@pytest.mark.parametrize("masks", [([1, 1, 1], [1, 0, 1]), ([0, 1, 0], [1, 1, 0]), ([0, 0, 0], [0, 0, 1])])
def test_pack_prefix(make, dtype, masks, where):
    images, prompt = make(2 * 3 * 5, 24, dtype=dtype), make(2, 7, 24, dtype=dtype)
    image_mask = torch.tensor(masks, device=where).bool()
    token_mask = torch.tensor([[1] * 7, [1, 1, 0, 0, 1, 0, 0]], device=where).bool()
    results = []
    for function in (PACK_PREFIX.reference, PACK_PREFIX.triton):
        x, length = poisoned(2, 22, 24, dtype=dtype, device=where), torch.zeros(2, dtype=torch.int32, device=where)
        function(images, image_mask, prompt, token_mask, x, length)
        results.append((x, length))
    (expected, length), (result, other) = results
    assert torch.equal(result, expected) and torch.equal(length, other)
    tokens = torch.cat((images.view(2, 15, 24), prompt), 1)
    mask = torch.cat((image_mask.repeat_interleave(5, 1), token_mask), 1)
    for robot in range(2):
        assert torch.equal(result[robot, : length[robot]], tokens[robot, mask[robot]])


@pytest.mark.parametrize(("batch", "tokens", "heads"), [(1, 1, 2), (2, 19, 3), (1, 40, 0)])
def test_rotate_and_store(make, dtype, batch, tokens, heads):
    qkv, angle = make(batch, tokens, (heads + 2) * 64, dtype=dtype), make(50, 32)
    rotary, cache = torch.stack([angle.cos(), angle.sin()]), make(2, batch, 45, 64, dtype=dtype)
    results = []
    for function in (ROTATE_AND_STORE.reference, ROTATE_AND_STORE.triton):
        queries, (keys, values) = poisoned(batch, tokens, heads * 64, dtype=dtype, device=qkv.device), cache.clone()
        function(qkv, rotary, queries, keys, values)
        results.append((queries, keys, values))
    for expected, result in zip(*results, strict=True):
        assert_agrees(result, expected)


@pytest.mark.parametrize(("tokens", "lengths"), [(1, [1]), (70, [70]), (45, [40, 3])])
def test_prefix_attention(make, where, dtype, tokens, lengths):
    if where.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16 wrongly")
    batch, heads, dim = len(lengths), 3, 64
    queries = make(batch, tokens, heads * dim, dtype=dtype)
    keys, values = make(2, batch, 90, dim, dtype=dtype)
    keys[:, max(lengths) :], values[:, max(lengths) :] = 50.0, 1e4
    length = torch.tensor(lengths, dtype=torch.int32, device=where)
    functions = [PREFIX_ATTENTION.reference, PREFIX_ATTENTION.triton, SDPA.run]
    outs = [poisoned(batch, tokens, heads * dim, dtype=dtype, device=where) for _ in functions]
    for function, out in zip(functions, outs, strict=True):
        function(queries, keys, values, length, out)
    for out in outs[1:]:
        for robot, end in enumerate(lengths):
            assert_agrees(out[robot, :end], outs[0][robot, :end])
        assert out.isfinite().all()


@pytest.mark.parametrize(("images", "tokens", "heads", "dim"), [(1, 1, 1, 16), (2, 70, 3, 24), (1, 64, 2, 72)])
def test_image_attention(make, where, dtype, images, tokens, heads, dim):
    if where.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16 wrongly")
    qkv = make(images * tokens, 3 * heads * dim, dtype=dtype)
    others = [c for c in IMAGE_ATTENTION.candidates[:-1] if c is not HOPPER_IMAGES]
    functions = [IMAGE_ATTENTION.reference, *(candidate.run for candidate in others)]
    outs = [poisoned(images * tokens, heads * dim, dtype=dtype, device=where) for _ in functions]
    for function, out in zip(functions, outs, strict=True):
        function(qkv, images, heads, out)
    for out in outs[1:]:
        assert_agrees(out, outs[0])


@pytest.mark.parametrize("tokens", [1, 3, 37])
@pytest.mark.parametrize("parts", [(64, 64, 128), (24, 40, 200)], ids=str)
def test_causal_conv(make, where, dtype, tokens, parts):
    x, weight = make(2, tokens, sum(parts), dtype=dtype), make(sum(parts), 4, dtype=dtype)
    results = []
    for function in (CAUSAL_CONV.reference, CAUSAL_CONV.triton):
        outs = [poisoned(2, tokens, part, dtype=dtype, device=where) for part in parts]
        function(x, weight, *outs)
        results.append(outs)
    for expected, result in zip(*results, strict=True):
        assert_agrees(result, expected)


def test_the_convolution_looks_back_only(make):
    x, weight = make(1, 8, 64), make(64, 4)
    outs = [[poisoned(1, 8, part, device=x.device) for part in (16, 16, 32)] for _ in range(2)]
    CAUSAL_CONV.triton(x, weight, *outs[0])
    x[:, 5] += 1.0
    CAUSAL_CONV.triton(x, weight, *outs[1])
    for before, after in zip(*outs, strict=True):
        assert torch.equal(before[:, :5], after[:, :5]) and not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("tokens", "lengths"), [(968, [968]), (121, [64, 121]), (8, [3])])
def test_the_hopper_prefix_attention(tokens, lengths):
    device, heads, dim = torch.device("cuda"), 8, 256
    generator = torch.Generator().manual_seed(1)
    queries, buffer = (
        draw(generator, *shape, dtype=torch.bfloat16, device=device)
        for shape in ((len(lengths), tokens, heads * dim), (2, 3, len(lengths), 1000, dim))
    )
    keys, values = buffer[:, 1]
    if (reason := HOPPER.refuse(device, queries, keys)) is not None:
        pytest.skip(reason)
    length = torch.tensor(lengths, dtype=torch.int32, device=device)
    expected, out = (poisoned(*queries.shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    PREFIX_ATTENTION.reference(queries, keys, values, length, expected)
    HOPPER.run(queries, keys, values, length, out)
    assert_agrees(out, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("images", "tokens", "heads", "dim"), [(3, 256, 16, 72), (2, 70, 3, 80), (1, 1, 1, 72)])
def test_the_hopper_image_attention(images, tokens, heads, dim):
    device, generator = torch.device("cuda"), torch.Generator().manual_seed(2)
    qkv = draw(generator, images * tokens, 3 * heads * dim, dtype=torch.bfloat16, device=device)
    expected, out = (poisoned(images * tokens, heads * dim, dtype=torch.bfloat16, device=device) for _ in range(2))
    if (reason := HOPPER_IMAGES.refuse(device, qkv, images, heads, out)) is not None:
        pytest.skip(reason)
    IMAGE_ATTENTION.reference(qkv, images, heads, expected)
    HOPPER_IMAGES.run(qkv, images, heads, out)
    assert_agrees(out, expected)


@pytest.mark.parametrize(("tokens", "dim", "word"), [(257, 72, "257"), (64, 64, "64")])
def test_the_hopper_image_attention_refuses_what_it_cannot_do(tokens, dim, word):
    qkv, out = torch.ones(tokens, 3 * dim, dtype=torch.bfloat16), torch.ones(tokens, dim, dtype=torch.bfloat16)
    assert word in HOPPER_IMAGES.refuse(torch.device("cuda"), qkv, 1, 1, out)
