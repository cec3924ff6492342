"""Dense product of many rows: out = x @ W^T, and with `geglu` columns in turns (g0, u0, ..) the GeGLU of it.

FP8 operands come with scales: out[r, n] = sum_k x[r, k] W[n, k] * x_scales[r] * weight_scales[n].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels import dense_hopper
from phyai_kernels.geglu import GEGLU, geglu_reference
from phyai_kernels.op import Candidate, Op


class Scales(NamedTuple):
    """Float32 scales of FP8 operands: one per row of x [R], one per row of W [N]."""

    x: Tensor
    weight: Tensor


def dense_reference(x: Tensor, weight: Tensor, out: Tensor, geglu: bool = False, scales: Scales | None = None) -> None:
    """x [R, K], weight [N, K]; out [R, N], or [R, N / 2] with `geglu`. Computed in float32."""
    y = x.float() @ weight.float().T
    if scales is not None:
        y = y * scales.x[:, None] * scales.weight
    if geglu:
        geglu_reference(y, out)
    else:
        out.copy_(y)


def dense_cublas(x: Tensor, weight: Tensor, out: Tensor, geglu: bool = False, scales: Scales | None = None) -> None:
    """Same contract as the reference: a library product, and with `geglu` one launch more."""
    target = torch.empty(x.shape[0], weight.shape[0], dtype=out.dtype, device=x.device) if geglu else out
    if scales is None:
        torch.mm(x, weight.T, out=target)
    else:
        options = {"scale_a": scales.x[:, None], "scale_b": scales.weight[None], "out_dtype": target.dtype}
        torch._scaled_mm(x, weight.T, **options, use_fast_accum=True, out=target)
    if geglu:
        GEGLU.pick(x.device)(target, out)


def _refuse_cublas(device: torch.device, x: Tensor, *_: object, **__: object) -> str | None:
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if x.dtype == torch.float8_e4m3fn and torch.cuda.get_device_capability(device) < (8, 9):
        return "FP8 products need compute capability 8.9"
    return None


CUBLAS = Candidate("cublas", dense_cublas, _refuse_cublas)
HOPPER = Candidate("hopper", dense_hopper.dense_hopper, dense_hopper.refuse_dense)
DENSE = Op("dense", dense_reference, first=(CUBLAS, HOPPER))
DENSE_GEGLU = Op("dense_geglu", dense_reference, first=(HOPPER, CUBLAS))  # called with geglu=True
