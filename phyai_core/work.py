"""How much arithmetic and memory traffic one inference needs, and the shortest time a device could take for it.

    floor = sum over stages of max(flops / peak flops, bytes / peak bandwidth)

Flops are those of matrix products, attention and convolutions (2 m n k each, in FP8 half of that: every device that has
it is twice as fast there); bytes are the second matrix of each of them, weights or keys and values, read once per use.
Everything else is taken as free, so no code can beat the floor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from phyai_core.adapter import Adapter

STAGES = ("vision", "prefix", "denoise")


@dataclass(frozen=True)
class Work:
    """Of one stage."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: int) -> Work:
        return Work(self.flops * count, self.bytes * count)


@dataclass(frozen=True)
class Roofs:
    """What a device can do at best. `source` says whose figures these are."""

    flops: float  # dense, in the type of the matrices, 1/s
    bytes: float  # 1/s
    source: str

    def floor_s(self, work: Work) -> float:
        """Seconds below which this work cannot be done."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


# bfloat16 products and device memory. The H200 was measured with large products and copies, the rest are data sheets.
KNOWN_ROOFS = {
    "H200": Roofs(790e12, 4.3e12, "H200, measured"),
    "H100": Roofs(989e12, 3.35e12, "H100 SXM, data sheet"),
    "RTX 5090": Roofs(209.5e12, 1.792e12, "RTX 5090, data sheet"),
    "RTX 4090": Roofs(165e12, 1.008e12, "RTX 4090, data sheet"),
    "Thor": Roofs(258e12, 0.273e12, "Jetson Thor, data sheet"),
    "Orin": Roofs(42.5e12, 0.2048e12, "AGX Orin, data sheet"),
}


class WorkCounter(TorchFunctionMode):
    """Counts the work of what runs inside it; on the meta device without doing it.

    Matrices count as of the type `dtype` where they are wider: shapes can be counted in another type than is run.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.total = Work()
        self._widest = dtype.itemsize

    def take(self) -> Work:
        """The work since the last take."""
        total, self.total = self.total, Work()
        return total

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        flops, matrices = _work(getattr(function, "__name__", ""), args, result)
        size = sum(matrix.numel() * min(matrix.element_size(), self._widest) for matrix in matrices)
        self.total += Work(flops, size)
        return result


def _work(name: str, args, result) -> tuple[int, tuple[Tensor, ...]]:
    """Flops of one call and the matrices it reads; `inner` is the length of the sums behind each number it gives."""
    if name == "scaled_dot_product_attention":
        q, k, v = args[:3]
        scores = q.numel() // q.shape[-1] * k.shape[-2]
        return 2 * scores * q.shape[-1] + 2 * scores * v.shape[-1], (k, v)
    if name in ("linear", "matmul", "__matmul__", "mm", "bmm"):
        second, inner = args[1], args[0].shape[-1]
    elif name in ("addmm", "baddbmm"):
        second, inner = args[2], args[1].shape[-1]
    elif name in ("conv1d", "conv2d"):
        second, inner = args[1], args[1][0].numel()
    elif name == "_scaled_mm":
        return result.numel() * args[0].shape[-1], (args[1],)
    else:
        return 0, ()
    return 2 * result.numel() * inner, (second,)


@torch.no_grad()
def count_work(adapter: Adapter, inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Work]:
    """Work per stage of one inference in `dtype` on `inputs`, which lie where the weights lie (meta: nothing is run).

    Without `adapter.vision` its work is part of the prefix. What depends on the prompt alone is not counted.
    """
    spec, stages = adapter.spec, {}
    batch, device = next(iter(inputs.values())).shape[0], next(iter(inputs.values())).device
    latents = torch.zeros(batch, spec.action_horizon, spec.latent_dim, device=device)
    flow_time = torch.zeros(batch, spec.action_horizon, device=device)
    if "prompt_embedding" in adapter.lifetimes:
        inputs = {**inputs, "prompt_embedding": adapter.embed_prompt(inputs)}
    with WorkCounter(dtype) as counter:
        hook = adapter.vision and adapter.vision.register_forward_hook(lambda *_: stages.update(vision=counter.take()))
        prefix = adapter.encode_prefix(inputs)
        stages["prefix"] = counter.take()
        if spec.num_denoise_steps:
            adapter.denoise_step(prefix, latents, flow_time)
            stages["denoise"] = counter.take().times(spec.num_denoise_steps)
        else:
            adapter.predict(prefix, torch.zeros(batch, *spec.noise_shape, device=device))
            stages["denoise"] = counter.take()
        if hook:
            hook.remove()
    return stages


def find_roofs(device: torch.device, dtype: torch.dtype) -> Roofs:
    """Known figures of this device for bfloat16, otherwise a quick measurement of it."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for key, roofs in KNOWN_ROOFS.items():
            if key in name:
                return roofs
    return measure_roofs(device, dtype)


def measure_roofs(device: torch.device, dtype: torch.dtype) -> Roofs:
    """The best of a few large products and copies."""
    side, length = (8192, 1 << 30) if device.type == "cuda" else (512, 1 << 25)
    matrix = torch.randn(side, side, device=device).to(dtype)
    block = torch.ones(length, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    product_s = _best_of(lambda: matrix @ matrix, device)
    copy_s = _best_of(lambda: target.copy_(block), device)
    return Roofs(2 * side**3 / product_s, 2 * length / copy_s, "measured now")


def _best_of(run, device: torch.device, repeats: int = 6) -> float:
    best = math.inf
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
