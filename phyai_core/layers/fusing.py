"""When layers run one kernel in place of several operations of torch: small ones spend their time on launches."""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op


def fuses(op: Op, x: Tensor) -> bool:
    """`op` has a kernel for the device of `x`, nobody will differentiate, and torch.compile is not fusing by itself."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and op.available(x.device)
