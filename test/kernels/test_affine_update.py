"""Guards against: a kernel that reads the wrong row's coefficients, misses the last block, rounds x to the model's type
or writes into its inputs; and against choosing a kernel where it cannot run.

As a program, with TRITON_INTERPRET=1, it prints the largest error of every case: Triton reads that variable when a
kernel is defined, so the interpreter needs a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from phyai_kernels.affine_update import AFFINE_UPDATE
from phyai_kernels.op import Op, triton

SHAPES = [(1, 1, 1), (1, 8, 3), (1, 32, 4), (2, 50, 32), (3, 7, 5), (1, 1, 257), (5, 51, 1)]  # [B, H, A']
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}  # of the velocity
TOLERANCE = 1e-5  # fused multiply-add


def make_inputs(shape, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(sum(shape))
    x, v, prefix = (torch.randn(shape, generator=generator) for _ in range(3))
    abc = torch.randn((*shape[:-1], 3), generator=generator)
    return [x.to(device), v.to(device, dtype), prefix.to(device), abc.to(device)]


def largest_error(shape, dtype, device):
    """Largest difference between kernel and reference; the inputs must come out untouched."""
    inputs = make_inputs(shape, dtype, device)
    before = [tensor.clone() for tensor in inputs]
    result = AFFINE_UPDATE.triton(*inputs)
    assert result.dtype == torch.float32 and result.shape == torch.Size(shape)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, before, strict=True))
    return float((result - AFFINE_UPDATE.reference(*inputs)).abs().max())


def test_reference_is_the_formula():
    x, v, prefix, abc = make_inputs((2, 3, 4))
    result = AFFINE_UPDATE.reference(x, v, prefix, abc)
    for batch in range(2):
        for row in range(3):
            a, b, c = abc[batch, row].tolist()
            expected = a * x[batch, row] + b * v[batch, row] + c * prefix[batch, row]
            torch.testing.assert_close(result[batch, row], expected)


def test_a_low_precision_velocity_does_not_lower_the_precision_of_x():
    x, v, prefix, abc = make_inputs((1, 8, 3), torch.bfloat16)
    in_float32 = AFFINE_UPDATE.reference(x, v.float(), prefix, abc)
    torch.testing.assert_close(AFFINE_UPDATE.reference(x, v, prefix, abc), in_float32)


@pytest.mark.skipif(triton is None, reason="Triton is not installed")
def test_kernel_agrees_with_the_reference_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    errors = json.loads(run.stdout)
    assert len(errors) == len(SHAPES) * len(DTYPES)
    assert {case: error for case, error in errors.items() if not error <= TOLERANCE} == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_agrees_with_the_reference_on_the_gpu(shape, dtype):
    assert largest_error(shape, DTYPES[dtype], "cuda") <= TOLERANCE


def test_the_kernel_is_chosen_only_where_it_can_run():
    assert AFFINE_UPDATE.pick(torch.device("cpu")) is AFFINE_UPDATE.reference
    chosen = AFFINE_UPDATE.pick(torch.device("cuda"))
    assert chosen is (AFFINE_UPDATE.reference if triton is None else AFFINE_UPDATE.triton)
    assert not Op("plain", AFFINE_UPDATE.reference).available(torch.device("cuda"))


if __name__ == "__main__":
    cases = [(shape, name) for shape in SHAPES for name in DTYPES]
    print(json.dumps({f"{shape} {name}": largest_error(shape, DTYPES[name], "cpu") for shape, name in cases}))
