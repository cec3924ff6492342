"""Operations that mostly move data or wait: error, time, bandwidth over buffers larger than the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_bench.timing import replay_times
from phyai_kernels.add_layer_norm import ADD_LAYER_NORM
from phyai_kernels.add_rms_norm import ADD_RMS_NORM
from phyai_kernels.causal_conv import CAUSAL_CONV
from phyai_kernels.gated_delta import GATED_DELTA
from phyai_kernels.gated_rms_norm import GATED_RMS_NORM
from phyai_kernels.geglu import GEGLU
from phyai_kernels.quantize_rows import FP8, QUANTIZE_ROWS
from phyai_kernels.rotate_and_store import ROTATE_AND_STORE
from phyai_kernels.small_attention import SMALL_ATTENTION
from phyai_kernels.swiglu import SWIGLU

TOTAL_BYTES = 400 << 20


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(*shape, device="cuda").to(dtype)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Memory on the GPU that is not set."""
    return torch.empty(*shape, dtype=dtype, device="cuda")


# Every entry: the operation, what makes its arguments, how many of the last arguments it fills.
CASES: dict[str, tuple[object, Callable[[], tuple], int]] = {
    "add_rms_norm 968x2048": (
        ADD_RMS_NORM,
        lambda: (normal(968, 2048), normal(968, 2048), normal(2048, dtype=torch.float32), empty(968, 2048)),
        1,
    ),
    "add_rms_norm 968x2048 fp8": (
        ADD_RMS_NORM,
        lambda: (
            normal(968, 2048),
            normal(968, 2048),
            normal(2048, dtype=torch.float32),
            empty(968, 2048, dtype=FP8),
            empty(968, dtype=torch.float32),
        ),
        2,
    ),
    "add_layer_norm 768x1152": (
        ADD_LAYER_NORM,
        lambda: (normal(768, 1152), normal(768, 1152), normal(1152), normal(1152), normal(1152), empty(768, 1152)),
        1,
    ),
    "geglu 968x16384": (GEGLU, lambda: (normal(968, 32768), empty(968, 16384)), 1),
    "quantize_rows 968x16384": (
        QUANTIZE_ROWS,
        lambda: (normal(968, 16384), empty(968, 16384, dtype=FP8), empty(968, dtype=torch.float32)),
        2,
    ),
    "rotate_and_store 968 tokens": (
        ROTATE_AND_STORE,
        lambda: (
            normal(1, 968, 2560),
            normal(2, 1024, 128, dtype=torch.float32),
            empty(1, 968, 2048),
            empty(1, 968, 256),
            empty(1, 968, 256),
        ),
        3,
    ),
    "causal_conv 1000x6144": (
        CAUSAL_CONV,
        lambda: (normal(1, 1000, 6144), normal(6144, 4), *(empty(1, 1000, 2048) for _ in range(3))),
        3,
    ),
    "gated_rms_norm 16000x128": (
        GATED_RMS_NORM,
        lambda: (normal(16000, 128), normal(16000, 128), normal(128), empty(16000, 128)),
        1,
    ),
    "swiglu 50x2048": (SWIGLU, lambda: (normal(50, 4096), empty(50, 2048)), 1),
    "small_attention 50 to 227, 15 heads of 64": (
        SMALL_ATTENTION,
        lambda: (
            normal(1, 50, 15, 64),
            *(normal(1, 227, 5, 64) for _ in range(2)),
            torch.ones(1, 50, 227, dtype=torch.bool, device="cuda").tril(177),
            empty(1, 50, 15, 64),
        ),
        1,
    ),
    "gated_delta 250 tokens, 16 heads of 128": (
        GATED_DELTA,
        lambda: (
            *(normal(1, 250, 16, 128) for _ in range(3)),
            *(normal(1, 250, 16) for _ in range(2)),
            *(normal(16, dtype=torch.float32) for _ in range(2)),
            normal(1, 16, 128, 128, dtype=torch.float32),
            empty(1, 250, 16, 128),
        ),
        1,
    ),
}


def measure() -> dict[str, object]:
    """Per case: relative error of what is filled, microseconds of a call, TB/s of all arguments touched once."""
    report = {}
    for name, (op, make, filled) in CASES.items():
        moved = sum(tensor.numel() * tensor.element_size() for tensor in make())
        sets = [make() for _ in range(max(2, TOTAL_BYTES // moved))]
        us = replay_times(lambda op=op, sets=sets: [op.triton(*arguments) for arguments in sets], runs=20)["p50"]
        us /= len(sets)
        entry = {"error": _error(op, make(), filled), "us": round(us, 1), "tb_s": round(moved / us / 1e6, 2)}
        report[name] = entry
    return report


def _error(op, arguments: tuple, filled: int) -> float:
    """Largest relative L2 error over the filled arguments, FP8 by its scales."""
    results = []
    for function in (op.reference, op.triton):
        own = tuple(tensor.clone() for tensor in arguments)
        for tensor in own[-filled:]:
            tensor.copy_(torch.full_like(tensor, float("nan"), dtype=torch.float32))
        function(*own)
        results.append([tensor.double() for tensor in own[-filled:]])
    pairs = zip(*results, strict=True)
    return max(float(f"{float((ours - plain).norm() / plain.norm()):.1e}") for plain, ours in pairs)
