"""GeGLU of a gate/up product whose columns come in turns (g0, u0, g1, u1, ..):

out[r, i] = gelu_tanh(y[r, 2 i]) * y[r, 2 i + 1]
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu

from phyai_kernels.gated_mlp import gelu_tanh
from phyai_kernels.op import Op, jit, tl, triton

BLOCK = 1024


def geglu_reference(y: Tensor, out: Tensor) -> None:
    """y [R, 2 F] -> out [R, F]."""
    wide = y.float()
    out.copy_(gelu(wide[:, 0::2], approximate="tanh") * wide[:, 1::2])


@jit
def _geglu_kernel(y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    index = 2 * start + tl.arange(0, 2 * BLOCK)
    y = tl.load(y_ptr + index, mask=index < 2 * count, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(y, (BLOCK, 2)))
    place = start + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, (gelu_tanh(gate) * up).to(out_ptr.dtype.element_ty), mask=place < count)


def geglu_triton(y: Tensor, out: Tensor) -> None:
    """Same contract as the reference, in one launch; both contiguous."""
    count = out.numel()
    _geglu_kernel[(triton.cdiv(count, BLOCK),)](y, out, count, BLOCK=BLOCK)


GEGLU = Op("geglu", geglu_reference, geglu_triton)
