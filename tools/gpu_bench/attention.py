"""Every candidate of both attentions: torch SDPA, Triton, Hopper, FlashInfer FA2 and FA3 (where it is installed)."""

from __future__ import annotations

import torch

from gpu_bench.prefix import CUDA, HEAD_DIM, HEADS, normal, relative_error
from gpu_bench.timing import replay_times
from phyai_kernels.expert_attention import EXPERT_ATTENTION
from phyai_kernels.op import Op
from phyai_kernels.prefix_attention import PREFIX_ATTENTION

REPEATS = 10  # calls in one graph
PREFIXES = {  # robots, tokens, of which count
    "3 cameras, 200 prompt tokens": (1, 968, 968),
    "the same, a short prompt": (1, 968, 790),
    "2 cameras, 48 prompt tokens": (1, 560, 560),
    "4 robots": (4, 968, 968),
    "8 robots": (8, 968, 968),
}
CHUNKS = {"chunk of 50 over 968": (1, 50, 968), "4 robots, chunk of 50 over 968": (4, 50, 968)}  # robots, rows, prefix


def measure() -> dict[str, object]:
    """Microseconds, TFLOP/s and error of each candidate, or why it was refused."""
    report = {f"prefix: {name}": _measure_prefix(*sizes) for name, sizes in PREFIXES.items()}
    return report | {f"expert: {name}": _measure_expert(*sizes) for name, sizes in CHUNKS.items()}


def _measure_prefix(robots: int, tokens: int, length: int) -> dict[str, object]:
    queries, capacity = normal(robots, tokens, HEADS * HEAD_DIM), -(-(tokens + 50) // 64) * 64
    lengths = torch.full((robots,), length, dtype=torch.int32, device=CUDA)
    keys, values = normal(2, robots, capacity, HEAD_DIM)
    flops = 4 * robots * tokens * length * HEADS * HEAD_DIM
    return _compare(PREFIX_ATTENTION, (queries, keys, values, lengths), flops, slice(0, length))


def _measure_expert(robots: int, rows: int, prefix: int) -> dict[str, object]:
    queries, capacity = normal(robots * rows, HEADS * HEAD_DIM), -(-(prefix + rows) // 64) * 64
    lengths = torch.full((robots,), prefix, dtype=torch.int32, device=CUDA)
    keys, values = normal(2, robots, capacity, HEAD_DIM)
    flops = 4 * robots * rows * (prefix + rows) * HEADS * HEAD_DIM
    return _compare(EXPERT_ATTENTION, (queries, keys, values, lengths), flops, slice(None))


def _compare(op: Op, arguments: tuple[torch.Tensor, ...], flops: int, counts: slice) -> dict[str, object]:
    """Only rows in `counts` mean something, of every robot."""
    expected, out = torch.empty_like(arguments[0]), torch.empty_like(arguments[0])
    op.reference(*arguments, expected)
    report = {}
    for candidate in op.candidates[:-1]:
        if (reason := candidate.refuse(CUDA, *arguments, out)) is not None:
            report[candidate.name] = f"refused: {reason}"
            continue
        out.fill_(float("nan"))
        candidate.run(*arguments, out)
        error = relative_error(out[..., counts, :], expected[..., counts, :])
        us = replay_times(lambda c=candidate: [c.run(*arguments, out) for _ in range(REPEATS)])["p50"] / REPEATS
        report[candidate.name] = {"error": error, "us": round(us, 1), "tflop_s": round(flops / us / 1e6)}
    return report
