"""Guards against: keys beyond the last tile, masks of another query or robot, shared heads mixed up, heads read at the
wrong place, and sizes that the kernel is not for."""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned

from phyai_kernels.small_attention import MOST_KEYS, SMALL_ATTENTION, small_attention_triton

SHAPES = [  # B, Q, S, N, M, K
    (1, 1, 1, 1, 1, 16),
    (2, 50, 65, 3, 1, 64),
    (1, 17, 130, 4, 2, 48),
    (2, 5, 7, 2, 2, 12),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", [None, "per key", "per query"])
def test_small_attention(where, dtype, shape, mask):
    if where.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16 wrongly")
    generator = torch.Generator().manual_seed(9)
    batch, queries, keys, heads, shared, width = shape
    row = draw(generator, batch, queries, (heads + 1) * width, dtype=dtype, device=where)  # queries before other things
    q = row[..., : heads * width].unflatten(-1, (heads, width))
    k, v = (draw(generator, batch, keys, shared, width, dtype=dtype, device=where) for _ in range(2))
    v = v.transpose(1, 2).contiguous().transpose(1, 2)  # head by head
    seen = None
    if mask is not None:
        seen = draw(generator, batch, 1 if mask == "per key" else queries, keys, device=where) > 0
        seen[..., -1] = True
    results = []
    for function in (small_attention_triton, SMALL_ATTENTION.reference):
        results.append(poisoned(*q.shape, device=where).to(dtype))
        function(q, k, v, seen, results[-1])
    assert_agrees(*results)


def test_what_it_is_not_for_is_refused():
    cuda = torch.device("cuda")
    q, k = torch.empty(1, 50, 8, 64), torch.empty(1, 200, 2, 64)
    assert SMALL_ATTENTION.refuse(cuda, q, k, k, None) is None
    many = torch.empty(1, MOST_KEYS + 1, 2, 64)
    assert SMALL_ATTENTION.refuse(cuda, q, many, many, None) == "50 queries, 513 keys; it is for at most 128 and 512"
    wide = torch.empty(1, 50, 8, 256)
    assert SMALL_ATTENTION.refuse(cuda, wide, wide, wide, None) == "heads of 256; it is for at most 128"
    assert "side by side" in SMALL_ATTENTION.refuse(cuda, q.mT.contiguous().mT, k, k, None)
    assert SMALL_ATTENTION.refuse(torch.device("cpu"), q, k, k, None) == "needs a CUDA device, not cpu"
