"""What chunks start from and are tied to, brought into the rows of an expert loop in one launch.

    state = Y where starts, noise elsewhere;    prefix = Y;    times = flow time * N, rounded

Each robot's H rows come behind `lead` rows of its own, which are left alone. Letters: B robots, N denoise steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels.op import Op, jit, tl, triton


class Request(NamedTuple):
    """Of B robots: noise, leftover Y [B, H, A'], starts bool [B, H, A'], abc [N, B, H, 3], flow times [N, B, H]."""

    noise: Tensor
    leftover: Tensor
    starts: Tensor
    abc: Tensor
    flow_times: Tensor


class Rows(NamedTuple):
    """R = B (lead + H): state and prefix [R, A'] float32, abc [N, R, 3] float32, times [N, R] int32."""

    state: Tensor
    prefix: Tensor
    abc: Tensor
    times: Tensor


def begin_chunk_reference(request: Request, rows: Rows, lead: int) -> None:
    """Fills the rows of the chunks."""
    steps, robots = request.flow_times.shape[:2]
    start = torch.where(request.starts, request.leftover, request.noise)
    rows.state.unflatten(0, (robots, -1))[:, lead:].copy_(start)
    rows.prefix.unflatten(0, (robots, -1))[:, lead:].copy_(request.leftover)
    rows.abc.unflatten(1, (robots, -1))[:, :, lead:].copy_(request.abc)
    times = (request.flow_times * steps).round().clamp(0, steps)
    rows.times.unflatten(1, (robots, -1))[:, :, lead:].copy_(times)


@jit
def _begin_chunk_kernel(
    noise_ptr,
    leftover_ptr,
    starts_ptr,
    abc_ptr,
    abc_stride,
    flow_ptr,
    flow_stride,
    state_ptr,
    prefix_ptr,
    rows_abc_ptr,
    rows_abc_stride,
    times_ptr,
    times_stride,
    lead,
    ACTIONS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_ACTIONS: tl.constexpr,
    BLOCK_STEPS: tl.constexpr,
):
    horizon = tl.num_programs(0)
    row = tl.program_id(1) * horizon + tl.program_id(0)
    out = tl.program_id(1) * (lead + horizon) + lead + tl.program_id(0)
    action = tl.arange(0, BLOCK_ACTIONS)
    known = action < ACTIONS
    leftover = tl.load(leftover_ptr + row * ACTIONS + action, mask=known)
    noise = tl.load(noise_ptr + row * ACTIONS + action, mask=known)
    starts = tl.load(starts_ptr + row * ACTIONS + action, mask=known, other=0)
    tl.store(state_ptr + out * ACTIONS + action, tl.where(starts != 0, leftover, noise), mask=known)
    tl.store(prefix_ptr + out * ACTIONS + action, leftover, mask=known)
    step = tl.arange(0, BLOCK_STEPS)
    taken = step < STEPS
    time = tl.load(flow_ptr + step * flow_stride + row, mask=taken, other=0.0) * STEPS
    time = tl.minimum(tl.maximum(time + 0.5, 0.0), STEPS + 0.0).to(tl.int32)
    tl.store(times_ptr + step * times_stride + out, time, mask=taken)
    for index in tl.static_range(3):
        value = tl.load(abc_ptr + step * abc_stride + row * 3 + index, mask=taken)
        tl.store(rows_abc_ptr + step * rows_abc_stride + out * 3 + index, value, mask=taken)


def begin_chunk_triton(request: Request, rows: Rows, lead: int) -> None:
    """Same contract as the reference, in one launch; robots lie one after the other in every tensor."""
    robots, horizon, actions = request.noise.shape
    steps = len(request.abc)
    _begin_chunk_kernel[(horizon, robots)](
        request.noise,
        request.leftover,
        request.starts,
        request.abc,
        request.abc.stride(0),
        request.flow_times,
        request.flow_times.stride(0),
        rows.state,
        rows.prefix,
        rows.abc,
        rows.abc.stride(0),
        rows.times,
        rows.times.stride(0),
        lead,
        ACTIONS=actions,
        STEPS=steps,
        BLOCK_ACTIONS=triton.next_power_of_2(actions),
        BLOCK_STEPS=triton.next_power_of_2(steps),
        num_warps=1,
    )


BEGIN_CHUNK = Op("begin_chunk", begin_chunk_reference, begin_chunk_triton)
