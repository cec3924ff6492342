"""What the device can do at most: copies and dense products, measured, not from a data sheet."""

from __future__ import annotations

import torch

from gpu_bench.timing import replay_times


def measure() -> dict[str, float]:
    """Scaled copy in TB/s (read plus written), bfloat16 and FP8 products in TFLOP/s."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copy = replay_times(lambda: torch.mul(source, 1.5, out=target), runs=20)["p50"]
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = replay_times(lambda: a @ b.T, runs=10)["p50"]
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    product8 = replay_times(lambda: torch._scaled_mm(a8, b8.T, one, one, out_dtype=torch.bfloat16), runs=10)["p50"]
    return {
        "copy_tb_s": round(4 * source.numel() / copy / 1e6, 2),
        "bf16_tflop_s": round(2 * 8192**3 / product / 1e6, 0),
        "fp8_tflop_s": round(2 * 8192**3 / product8 / 1e6, 0),
    }
