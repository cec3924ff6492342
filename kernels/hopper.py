"""Pieces of the kernels for Hopper GPUs (Gluon: bulk copies, warp group products, dependent launches).

Such a kernel first lets its successor start, then asks for its weights, which depend on nothing, and only then waits
for its predecessor: most of the weight traffic hides behind the work before. Weights of a thread block stay in shared
memory as a whole; the operand passes through a ring of chunks.

A product here is operand [64, K] @ weight[row : row + BLOCK_N, K]^T, both cut into chunks of CHUNK columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phyai_kernels.op import gdc_launch_dependents, gdc_wait, triton

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block_barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # renamed in Triton 3.7
except ImportError:
    gluon = gl = None

__all__ = ["accumulate", "describe", "gdc_launch_dependents", "gdc_wait", "gl", "gluon_jit", "load_operand"]
__all__ += ["block_barrier", "load_weights", "mbarrier", "refuse", "tma", "warpgroup_mma"]
__all__ += ["wait_for_arrivals", "warpgroup_mma_wait"]


def gluon_jit(function: Any) -> Any:
    """gluon.jit where this Triton has Gluon, otherwise None in place of the kernel."""
    return None if gluon is None else gluon.jit(function)


def refuse(device: torch.device) -> str | None:
    """Why the Hopper kernels cannot run on `device`, or None."""
    if triton is None or gluon is None:
        return "Triton with Gluon is not installed"
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    capability = torch.cuda.get_device_capability(device)
    return None if capability == (9, 0) else "needs compute capability 9.0, not {}.{}".format(*capability)


def describe(matrix: Tensor, rows: int, columns: int) -> Any:
    """Bulk copy descriptor of blocks [rows, columns] of a contiguous matrix; rows beyond it read as zero."""
    kind = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float8e4nv
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)


@gluon_jit
def fast_tanh(x):
    """tanh in one instruction, relative error 2^-11: finer than the bfloat16 that results are stored in."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon_jit
def load_weights(desc, row, start, CHUNKS: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr):
    """Asks for CHUNKS chunks of weight rows row .. row + BLOCK_N - 1, from column `start` on -> (chunks, ready)."""
    slab = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, BLOCK_N, CHUNK], desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=1)
    mbarrier.expect(ready.index(0), CHUNKS * BLOCK_N * CHUNK * 2)
    for index in gl.static_range(CHUNKS):
        tma.async_copy_global_to_shared(desc, [row, start + index * CHUNK], ready.index(0), slab.index(index))
    return slab, ready


@gluon_jit
def load_operand(desc, start, CHUNKS: gl.constexpr, RING: gl.constexpr, CHUNK: gl.constexpr):
    """Waits for the predecessor and asks for the first RING of CHUNKS operand chunks -> (ring, ready per chunk)."""
    ring = gl.allocate_shared_memory(gl.bfloat16, [RING, 64, CHUNK], desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [CHUNKS, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(CHUNKS):
        mbarrier.init(ready.index(index), count=1)
        mbarrier.expect(ready.index(index), 64 * CHUNK * 2)
    gdc_wait()
    for index in gl.static_range(RING):
        tma.async_copy_global_to_shared(desc, [0, start + index * CHUNK], ready.index(index), ring.index(index))
    return ring, ready


@gluon_jit
def accumulate(
    desc,
    start,
    weights,
    ring,
    CHUNKS: gl.constexpr,
    RING: gl.constexpr,
    BLOCK_N: gl.constexpr,
    CHUNK: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """The product [64, BLOCK_N] float32 of what `load_weights` and `load_operand` asked for."""
    slab, slab_ready = weights
    chunks, chunk_ready = ring
    total = gl.zeros([64, BLOCK_N], gl.float32, LAYOUT)
    mbarrier.wait(slab_ready.index(0), 0)
    for index in gl.static_range(CHUNKS):
        mbarrier.wait(chunk_ready.index(index), 0)
        total = warpgroup_mma(chunks.index(index % RING), slab.index(index).permute((1, 0)), total, is_async=True)
        if index + RING < CHUNKS:  # the slot is free once its product is done
            total = warpgroup_mma_wait(0, deps=(total,))
            block_barrier()
            column = start + (index + RING) * CHUNK
            slot = chunks.index(index % RING)
            tma.async_copy_global_to_shared(desc, [0, column], chunk_ready.index(index + RING), slot)
    return warpgroup_mma_wait(0, deps=(total,))


@gluon_jit
def wait_for_arrivals(counter, COUNT: gl.constexpr):
    """Publishes what this thread block wrote and returns when COUNT blocks did; all of them must be resident."""
    THREADS: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    block_barrier()
    gl.inline_asm_elementwise(  # one thread tells and polls, the barriers hold the others
        """{
            .reg .pred skip;
            .reg .u32 arrived;
            setp.ne.u32 skip, $3, 0;
            @skip bra done;
            red.release.gpu.global.add.u32 [$1], 1;
        poll:
            ld.acquire.gpu.global.u32 arrived, [$1];
            setp.lt.u32 skip, arrived, $2;
            @skip bra poll;
        done:
            mov.u32 $0, 0;
        }""",
        "=r,l,r,r",
        [counter.to(gl.int64), gl.full([128], COUNT, gl.int32, THREADS), gl.arange(0, 128, THREADS)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    block_barrier()
