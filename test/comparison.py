"""How kernel tests draw inputs and compare results."""

from __future__ import annotations

import torch

# Relative L2 error allowed against the reference on the same inputs: order of sums, one rounding of the result.
TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-3, torch.bfloat16: 8e-3}  # float32 products may run in tf32


def draw(generator, *shape, dtype=torch.float32, device="cpu", scale=1.0):
    """Normal numbers, drawn where the generator is."""
    return (torch.randn(*shape, generator=generator, device=generator.device) * scale).to(device, dtype)


def poisoned(*shape, dtype=torch.float32, device="cpu"):
    """Not-a-numbers: whatever a kernel does not write fails the comparison."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def relative_error(result, expected):
    """L2 norm of the difference over that of `expected`; NaN counts as infinite."""
    difference = (result.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
    return float("inf") if difference.isnan() else float(difference)


def assert_agrees(result, expected):
    """Within the tolerance of the result's type."""
    assert result.shape == expected.shape and result.dtype == expected.dtype
    error = relative_error(result, expected)
    assert error <= TOLERANCE[result.dtype], error
