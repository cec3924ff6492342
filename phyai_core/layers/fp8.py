"""A linear layer on FP8 (e4m3): weights with one scale per output, inputs with one per row, found on the way.

y[r, n] = sum_k x8[r, k] W8[n, k] * x_scale[r] * scale[n];    x is about x8 * x_scale, W about W8 * scale
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phyai_kernels.dense import Scales, dense_reference
from phyai_kernels.quantize_rows import FP8, quantize_rows_reference, quantize_weight


class Fp8Linear(nn.Module):
    """Takes the place of an nn.Linear without bias. Same values on every device, up to the order of sums."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=FP8), requires_grad=False)  # [N, K]
        self.scale = nn.Parameter(torch.empty(outputs, dtype=torch.float32), requires_grad=False)  # [N]

    @classmethod
    @torch.no_grad()
    def rounded(cls, linear: nn.Linear) -> Fp8Linear:
        """A layer on the same device with the weights of `linear`, rounded."""
        with torch.device("meta"):
            made = cls(linear.in_features, linear.out_features)
        weight, scale = quantize_weight(linear.weight)
        made.weight, made.scale = (nn.Parameter(tensor, requires_grad=False) for tensor in (weight, scale))
        return made

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] -> [.., N] of the type of x. CUDA devices need compute capability 8.9."""
        rows = x.flatten(0, -2)
        operand, row_scale = torch.empty_like(rows, dtype=FP8), rows.new_empty(len(rows), dtype=torch.float32)
        quantize_rows_reference(rows, operand, row_scale)
        if rows.device.type == "cpu":
            y = rows.new_empty(len(rows), len(self.scale))
            dense_reference(operand, self.weight, y, scales=Scales(row_scale, self.scale))
        else:
            scales = {"scale_a": row_scale[:, None], "scale_b": self.scale[None]}
            y = torch._scaled_mm(operand, self.weight.T, **scales, out_dtype=torch.bfloat16, use_fast_accum=True)
        return y.to(x.dtype).unflatten(0, x.shape[:-1])


def refuse_fp8(device: torch.device) -> str | None:
    """Why FP8 layers cannot run on `device`, or None."""
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < (8, 9):
        return f"FP8 products need compute capability 8.9 (Ada, Hopper or newer), this GPU has {found[0]}.{found[1]}"
    return None
