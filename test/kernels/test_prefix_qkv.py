"""Guards against: rotary partners, heads or scales mixed up by the order of a weight's rows, keys and values in the
wrong rows of the buffer, and a pass that takes the kernel with the weight in its plain order.
"""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned, relative_error

from phyai_kernels.dense import Scales, dense_reference
from phyai_kernels.prefix_qkv import HOPPER, PREFIX_QKV, qkv_order
from phyai_kernels.quantize_rows import quantize_weight
from phyai_kernels.rotate_and_store import ROTATE_AND_STORE


def make_call(batch, tokens, heads, head_dim, width, fp8, device="cpu", dtype=torch.float32):
    """Arguments with a weight in plain order, outputs poisoned up to the rows that stay as they are."""
    generator = torch.Generator().manual_seed(batch + tokens)
    x, weight = (
        draw(generator, size, width, dtype=dtype, device=device) for size in (batch * tokens, (heads + 2) * head_dim)
    )
    weight, scales = weight * width**-0.5, None
    if fp8:
        (x, x_scales), (weight, weight_scales) = quantize_weight(x), quantize_weight(weight)
        scales = Scales(x_scales, weight_scales)
    angle = draw(generator, tokens + 9, head_dim // 2, device=device)
    queries = poisoned(batch, tokens, heads * head_dim, dtype=dtype, device=device)
    cache = torch.full((2, batch, tokens + 5, head_dim), 7.0, dtype=dtype, device=device)
    cache[:, :, :tokens] = float("nan")
    return x, weight, scales, torch.stack([angle.cos(), angle.sin()]), queries, *cache


def in_blocks(x, weight, scales, rotary, queries, keys, values):
    """The same call with the weight as the kernel wants it, and outputs of its own."""
    order = qkv_order(queries.shape[-1] // keys.shape[-1], keys.shape[-1], weight.device)
    scales = None if scales is None else Scales(scales.x, scales.weight[order])
    return x, weight[order], scales, rotary, queries.clone(), keys.clone(), values.clone()


@pytest.mark.parametrize("heads", [8, 4, 1])
def test_the_order_holds_each_row_once_with_its_rotary_partner(heads):
    head_dim, half = 64, 32
    order = qkv_order(heads, head_dim)
    assert sorted(order.tolist()) == list(range((heads + 2) * head_dim))
    blocks = order.view(2 * heads, -1)
    for part in (blocks[:, :half], blocks[:, half:]):
        first, second = part.chunk(2, 1)
        assert torch.equal(first + half, second)


@pytest.mark.parametrize("fp8", [False, True])
def test_the_reference_is_product_rotation_and_store(fp8):
    arguments = make_call(2, 7, 4, 32, 64, fp8)
    blocked = in_blocks(*arguments)
    PREFIX_QKV.reference(*blocked)
    x, weight, scales, rotary, *outs = arguments
    qkv = torch.empty(len(x), len(weight))
    dense_reference(x, weight, qkv, scales=scales)
    ROTATE_AND_STORE.reference(qkv.unflatten(0, (2, 7)), rotary, *outs)
    for result, expected in zip(blocked[4:], outs, strict=True):
        assert relative_error(result, expected) < 1e-5


def test_the_kernel_refuses_other_heads_and_types():
    device = torch.device("cuda")
    assert "8 heads of 256" in HOPPER.refuse(device, *make_call(1, 3, 4, 256, 128, False, dtype=torch.bfloat16))
    assert "float32" in HOPPER.refuse(device, *make_call(1, 3, 8, 256, 128, False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 968), (2, 333), (3, 70)])
def test_the_hopper_kernel(batch, tokens, fp8):
    arguments = in_blocks(*make_call(batch, tokens, 8, 256, 256, fp8, "cuda", torch.bfloat16))
    if (reason := HOPPER.refuse(torch.device("cuda"), *arguments)) is not None:
        pytest.skip(reason)
    outs = [tensor.clone() for tensor in arguments[4:]]
    PREFIX_QKV.reference(*arguments)
    HOPPER.run(*arguments[:4], *outs)
    for result, expected in zip(outs, arguments[4:], strict=True):
        assert_agrees(result, expected)
