"""Guards against: rows or column tiles left out, gate and up mixed up, scales of the wrong operand, a candidate that is
taken for a call it cannot do.
"""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned, relative_error

from phyai_kernels.dense import CUBLAS, DENSE, HOPPER, Scales
from phyai_kernels.gated_mlp import interleave_rows
from phyai_kernels.quantize_rows import FP8, quantize_rows_reference, quantize_weight


def make_call(rows, columns, k, geglu, fp8, device):
    """Arguments of a product with its own random operands, and the exact result before any quantisation."""
    generator = torch.Generator().manual_seed(rows + columns)
    x, weight = (draw(generator, size, k, dtype=torch.bfloat16, device=device) for size in (rows, columns))
    weight = weight * k**-0.5
    out = poisoned(rows, columns // 2 if geglu else columns, dtype=torch.bfloat16, device=device)
    exact = torch.empty_like(out)
    DENSE.reference(x, weight, exact, geglu)
    if not fp8:
        return (x, weight, out, geglu), exact
    x8, x_scales = torch.empty_like(x, dtype=FP8), torch.empty(rows, device=device)
    quantize_rows_reference(x, x8, x_scales)
    weight8, weight_scales = quantize_weight(weight)
    return (x8, weight8, out, geglu, Scales(x_scales, weight_scales)), exact


def test_the_reference_is_the_formula():
    generator = torch.Generator().manual_seed(0)
    x, gate, up = (draw(generator, size, 64) for size in (5, 32, 32))
    out = torch.empty(5, 32)
    DENSE.reference(x, interleave_rows(gate, up), out, geglu=True)
    expected = torch.nn.functional.gelu(x @ gate.T, approximate="tanh") * (x @ up.T)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("geglu", [False, True])
def test_fp8_costs_no_more_than_its_rounding(geglu):
    arguments, exact = make_call(9, 256, 512, geglu, True, "cpu")
    DENSE.reference(*arguments)
    assert 0 < relative_error(arguments[2], exact) < 0.06


def test_the_hopper_product_refuses_what_it_cannot_do():
    x, weight, out = torch.ones(2, 128), torch.ones(256, 128), torch.empty(2, 256)
    assert "float32" in HOPPER.refuse(torch.device("cuda"), x, weight, out)
    x, weight, out = x.bfloat16(), weight[:, :100].bfloat16(), out.bfloat16()
    assert "(256, 100)" in HOPPER.refuse(torch.device("cuda"), x, weight, out)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("candidate", [CUBLAS, HOPPER], ids=lambda candidate: candidate.name)
@pytest.mark.parametrize(
    ("rows", "columns", "k", "geglu"),
    [(968, 2560, 2048, False), (1, 128, 128, False), (129, 33024, 256, True), (70, 512, 1152, True)],
)
def test_candidates_agree_on_the_gpu(candidate, rows, columns, k, geglu, fp8):
    arguments, _ = make_call(rows, columns, k, geglu, fp8, "cuda")
    if (reason := candidate.refuse(torch.device("cuda"), *arguments)) is not None:
        pytest.skip(reason)
    expected = torch.empty_like(arguments[2])
    DENSE.reference(*arguments[:2], expected, *arguments[3:])
    candidate.run(*arguments)
    assert_agrees(arguments[2], expected)
