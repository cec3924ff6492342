"""Guards against: norms over padding or with the wrong offset; rotations that read another head, or touch elements that
are not rotated; weights of keys that are not seen."""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned

from phyai_kernels.add_layer_norm import ADD_LAYER_NORM
from phyai_kernels.masked_softmax import MASKED_SOFTMAX
from phyai_kernels.rms_norm import RMS_NORM
from phyai_kernels.rotate import ROTATE
from phyai_kernels.swiglu import SWIGLU

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def make(where):
    """Seeded normal numbers on the device under test."""
    generator = torch.Generator().manual_seed(5)
    return lambda *shape, dtype=torch.float32: draw(generator, *shape, dtype=dtype, device=where)


def compare(op, inputs, shape, dtype, options=()):
    """The kernel gives what the reference gives."""
    results = []
    for function in (op.triton, op.reference):
        results.append(poisoned(*shape, device=inputs[0].device).to(dtype))
        function(*inputs, results[-1], *options)
    assert_agrees(*results)


@pytest.mark.parametrize("shape", [(1, 48), (5, 64), (70, 100), (3, 2048), (2, 5000)], ids=str)
@pytest.mark.parametrize(("eps", "offset"), [(1e-6, 1.0), (1e-5, 0.0)])
def test_rms_norm(make, dtype, shape, eps, offset):
    compare(RMS_NORM, [make(*shape, dtype=dtype), make(shape[1])], shape, dtype, (eps, offset))


@pytest.mark.parametrize("shape", [(5, 64), (3, 2048)], ids=str)
def test_rms_norm_of_a_sum(make, dtype, shape):
    x, weight, branch = make(*shape, dtype=dtype), make(shape[1]), make(*shape, dtype=dtype)
    kept, results = x.clone(), []
    for function in (RMS_NORM.triton, RMS_NORM.reference):
        out, total = (poisoned(*shape, device=x.device).to(dtype) for _ in range(2))
        function(x, weight, out, 1e-6, 1.0, branch, total)
        results.append((total, out))
    for one, other in zip(*results, strict=True):
        assert_agrees(one, other)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("shape", [(1, 64), (5, 100)], ids=str)
def test_layer_norm_without_weights(make, dtype, shape):
    x, branch, bias = make(*shape, dtype=dtype) + 3, make(*shape, dtype=dtype), make(shape[1])
    results = []
    for function in (ADD_LAYER_NORM.triton, ADD_LAYER_NORM.reference):
        total, out = x.clone(), poisoned(*shape, device=x.device).to(dtype)
        function(total, branch, bias, None, None, out, 1e-5)
        results.append((total, out))
    for one, other in zip(*results, strict=True):
        assert_agrees(one, other)


@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (3, 2048)], ids=str)
def test_swiglu(make, dtype, shape):
    compare(SWIGLU, [make(shape[0], 2 * shape[1], dtype=dtype)], shape, dtype)


@pytest.mark.parametrize(
    ("heads", "width", "rotated"), [(1, 16, 16), (3, 24, 24), (15, 64, 64), (2, 32, 8), (5, 80, 20)]
)
def test_rotate(make, dtype, heads, width, rotated):
    row = make(2, 7, (heads + 2) * width, dtype=dtype)  # queries in front of keys and values
    x = row[..., : heads * width].unflatten(-1, (heads, width))
    cos, sin = make(2, 7, 1, rotated // 2), make(2, 7, 1, rotated // 2)
    compare(ROTATE, [x, cos, sin], x.shape, dtype)


@pytest.mark.parametrize(("queries", "groups", "keys"), [(1, 3, 5), (6, 1, 64), (7, 2, 300)])
@pytest.mark.parametrize("per_query", [True, False])
def test_masked_softmax(make, dtype, queries, groups, keys, per_query):
    scores = make(2, 3, queries * groups, keys) * 5
    mask = make(2, queries if per_query else 1, keys) > 0
    mask[..., 0] = True
    results = []
    for function in (MASKED_SOFTMAX.triton, MASKED_SOFTMAX.reference):
        results.append(poisoned(*scores.shape, device=scores.device).to(dtype))
        function(scores, mask, 0.3, results[-1])
    assert_agrees(*results)
    unseen = ~mask.repeat(1, scores.shape[2] // mask.shape[1], 1)[:, None]
    assert not results[0].masked_select(unseen).any()
