"""The update of one denoise step, plain Euler and real-time chunking alike, per row i:

    x[i, :] <- a[i] x[i, :] + b[i] v[i, :] + c[i] Y[i, :]

x, Y and the coefficients are float32: a bfloat16 step of x would be larger than the seam between two chunks may be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton

BLOCK = 256


def affine_update_reference(x: Tensor, v: Tensor, prefix: Tensor, abc: Tensor) -> Tensor:
    """x, prefix [..., A'] float32, v [..., A'] any float type, abc [..., 3] float32 -> new x [..., A'] float32."""
    a, b, c = abc.unsqueeze(-1).unbind(-2)  # each [..., 1]
    return a * x + b * v.float() + c * prefix


@jit
def _affine_update_kernel(x_ptr, v_ptr, prefix_ptr, abc_ptr, out_ptr, count, columns, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    row = index // columns
    a = tl.load(abc_ptr + row * 3, mask=inside)
    b = tl.load(abc_ptr + row * 3 + 1, mask=inside)
    c = tl.load(abc_ptr + row * 3 + 2, mask=inside)
    x = tl.load(x_ptr + index, mask=inside)
    v = tl.load(v_ptr + index, mask=inside).to(tl.float32)
    prefix = tl.load(prefix_ptr + index, mask=inside)
    tl.store(out_ptr + index, a * x + b * v + c * prefix, mask=inside)


def affine_update_triton(x: Tensor, v: Tensor, prefix: Tensor, abc: Tensor) -> Tensor:
    """Same contract as the reference, in one launch; shapes must be equal, without broadcasting."""
    assert x.shape == v.shape == prefix.shape and abc.shape == (*x.shape[:-1], 3), (x.shape, v.shape, abc.shape)
    assert x.dtype == prefix.dtype == abc.dtype == torch.float32, (x.dtype, prefix.dtype, abc.dtype)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    count = x.numel()
    if count:
        operands = [tensor.contiguous() for tensor in (x, v, prefix, abc)]
        _affine_update_kernel[(triton.cdiv(count, BLOCK),)](*operands, out, count, x.shape[-1], BLOCK=BLOCK)
    return out


AFFINE_UPDATE = Op("affine_update", affine_update_reference, affine_update_triton)
