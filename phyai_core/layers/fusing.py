"""When layers run one kernel in place of several operations of torch: small ones spend their time on launches."""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op


def fuses(op: Op, x: Tensor, *more: Tensor | None) -> bool:
    """`op` has a kernel for `x` and `more`, nobody will differentiate, and torch.compile is not fusing by itself.

    What limits a kernel is looked at where `more` is given: x and more are then the first arguments of the operation.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return op.available(x.device, *((x, *more) if more else ()))
