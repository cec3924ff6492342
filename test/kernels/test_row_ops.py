"""Guards against: statistics over padding, a residual that is not stored or stored twice, columns in the wrong order,
a scale that overflows FP8, and inputs that come out changed.
"""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned, relative_error

from phyai_kernels.add_layer_norm import ADD_LAYER_NORM
from phyai_kernels.add_rms_norm import ADD_RMS_NORM
from phyai_kernels.bias_gelu import BIAS_GELU, CUBLAS
from phyai_kernels.gated_rms_norm import GATED_RMS_NORM
from phyai_kernels.geglu import GEGLU
from phyai_kernels.quantize_rows import FP8, QUANTIZE_ROWS, quantize_weight

SHAPES = [(1, 64), (5, 100), (3, 1152), (7, 2048)]  # rows, width
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def make(where):
    """Seeded normal numbers on the device under test."""
    generator = torch.Generator().manual_seed(7)
    return lambda *shape, dtype=torch.float32, scale=1.0: draw(
        generator, *shape, dtype=dtype, device=where, scale=scale
    )


def run(function, inputs, outputs):
    """Calls it on copies of the inputs and on poisoned outputs; returns both as it left them."""
    inputs = [None if tensor is None else tensor.clone() for tensor in inputs]
    outputs = [
        poisoned(*tensor.shape, dtype=torch.float32, device=tensor.device).to(tensor.dtype) for tensor in outputs
    ]
    function(*inputs, *outputs)
    return inputs, outputs


def compare(op, inputs, outputs, functions=None):
    """Every candidate leaves the same inputs and outputs behind as the reference."""
    expected_inputs, expected = run(op.reference, inputs, outputs)
    for function in functions or [op.triton]:
        left, result = run(function, inputs, outputs)
        for one, other in zip(result, expected, strict=True):
            assert_agrees(one, other)
        for one, other in zip(left, expected_inputs, strict=True):
            if one is not None:
                assert_agrees(one, other)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_add_rms_norm(make, dtype, shape, add):
    x, weight = make(*shape, dtype=dtype), make(shape[1], scale=0.1)
    branch = make(*shape, dtype=dtype) if add else None
    compare(ADD_RMS_NORM, [x, branch, weight], [x])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_add_layer_norm(make, dtype, shape, add):
    x, bias, weight, shift = make(*shape, dtype=dtype) + 3, make(shape[1]), make(shape[1]), make(shape[1])
    branch = make(*shape, dtype=dtype) if add else None
    compare(ADD_LAYER_NORM, [x, branch, bias, weight, shift], [x])


@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (3, 1500)], ids=str)
def test_geglu(make, dtype, shape):
    compare(GEGLU, [make(shape[0], 2 * shape[1], dtype=dtype)], [make(*shape, dtype=dtype)])


def test_bias_gelu(make, dtype, where):
    x, weight, bias = make(5, 64, dtype=dtype), make(48, 64, dtype=dtype, scale=0.1), make(48, dtype=dtype)
    fused = [] if CUBLAS.refuse(where, x) else [CUBLAS.run]
    compare(BIAS_GELU, [x, weight, bias], [make(5, 48, dtype=dtype)], [BIAS_GELU.triton, *fused])


@pytest.mark.parametrize("shape", [(1, 128), (9, 128), (6, 96)], ids=str)
def test_gated_rms_norm(make, dtype, shape):
    x, gate, weight = make(*shape, dtype=dtype), make(*shape, dtype=dtype), make(shape[1])
    compare(GATED_RMS_NORM, [x, gate, weight], [x])


def dequantized(out, scales):
    return out.float() * scales[:, None]


@pytest.fixture
def fp8_error(where):
    """Relative error of rounding to FP8; the interpreter cuts off instead of rounding."""
    return 0.04 if where.type == "cuda" else 0.08


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantized_rows_come_back_within_the_rounding_of_fp8(make, where, dtype, shape, fp8_error):
    x = make(*shape, dtype=dtype, scale=30.0)
    x[0, 0] = 300.0
    out, scales = torch.empty(shape, dtype=FP8, device=where), poisoned(shape[0], device=where)
    QUANTIZE_ROWS.triton(x, out, scales)
    back = dequantized(out, scales)
    assert relative_error(back[:, 1:], x[:, 1:]) < fp8_error
    torch.testing.assert_close(back[0, 0], x[0, 0].float(), rtol=fp8_error, atol=0)


def test_a_norm_with_scales_is_the_norm_quantized(make, where, fp8_error):
    x, branch, weight = make(5, 2048, dtype=torch.float16), make(5, 2048, dtype=torch.float16), make(2048, scale=0.1)
    normed = torch.empty_like(x)
    ADD_RMS_NORM.reference(x.clone(), branch, weight, normed)
    out, scales = torch.empty(5, 2048, dtype=FP8, device=where), poisoned(5, device=where)
    ADD_RMS_NORM.triton(x, branch, weight, out, scales)
    assert relative_error(dequantized(out, scales), normed) < fp8_error


def test_weights_have_one_scale_per_output_channel(make):
    weight = make(6, 64) * torch.tensor([1.0, 10, 100, 0.1, 1, 1], device=make(1).device)[:, None]
    out, scales = quantize_weight(weight)
    for row in range(6):
        assert relative_error(out[row].float() * scales[row], weight[row]) < 0.04
