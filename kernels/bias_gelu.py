"""Linear layer with bias and tanh GELU: out = gelu_tanh(x @ W^T + b). cuBLAS does all of it in one launch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu

from phyai_kernels.gated_mlp import gelu_tanh
from phyai_kernels.op import Candidate, Op, jit, tl, triton

BLOCK = 1024


def bias_gelu_reference(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """x [R, K], weight [N, K], bias [N], out [R, N], all of one float type."""
    out.copy_(gelu(x.float() @ weight.float().T + bias.float(), approximate="tanh"))


@jit
def _bias_gelu_kernel(y_ptr, bias_ptr, count, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    bias = tl.load(bias_ptr + index % COLUMNS, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + index, mask=inside, other=0.0).to(tl.float32) + bias
    tl.store(y_ptr + index, gelu_tanh(y).to(y_ptr.dtype.element_ty), mask=inside)


def bias_gelu_triton(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """Same contract as the reference: a library product, then one launch for the rest."""
    torch.mm(x, weight.T, out=out)
    count = out.numel()
    _bias_gelu_kernel[(triton.cdiv(count, BLOCK),)](out, bias, count, COLUMNS=out.shape[1], BLOCK=BLOCK)


def bias_gelu_cublas(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """Same contract as the reference, in one cuBLAS launch with a GELU epilogue."""
    torch._addmm_activation(bias, x, weight.T, use_gelu=True, out=out)


def _refuse_cublas(device: torch.device, x: Tensor, *_: Tensor) -> str | None:
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"cuBLAS fuses GELU for 16-bit types, not {x.dtype}"
    return None


CUBLAS = Candidate("cublas", bias_gelu_cublas, _refuse_cublas)
BIAS_GELU = Op("bias_gelu", bias_gelu_reference, bias_gelu_triton, first=(CUBLAS,))
