"""SwiGLU of a joint gate/up product, gates in front: out[r, i] = silu(y[r, i]) * y[r, F + i]."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from phyai_kernels.op import Op, jit, tl, triton

BLOCK = 1024


def swiglu_reference(y: Tensor, out: Tensor) -> None:
    """y [R, 2 F] -> out [R, F]."""
    gate, up = y.float().chunk(2, dim=-1)
    out.copy_(silu(gate) * up)


@jit
def _swiglu_kernel(y_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate_at = y_ptr + row * 2 * WIDTH + column
    gate = tl.load(gate_at, mask=column < WIDTH, other=0.0).to(tl.float32)
    up = tl.load(gate_at + WIDTH, mask=column < WIDTH, other=0.0).to(tl.float32)
    gated = (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * WIDTH + column, gated, mask=column < WIDTH)


def swiglu_triton(y: Tensor, out: Tensor) -> None:
    """Same contract as the reference, in one launch."""
    rows, width = out.shape
    _swiglu_kernel[(rows, triton.cdiv(width, BLOCK))](y, out, WIDTH=width, BLOCK=BLOCK)


SWIGLU = Op("swiglu", swiglu_reference, swiglu_triton)
