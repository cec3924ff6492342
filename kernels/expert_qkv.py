"""Queries, keys and values of one expert layer in one launch: norm, product, rotation and the write into the KV buffer.

    y = norm(x) @ W^T (folded, see skinny.py);   q, k <- rotate(q, k);   keys[b, P_b + i], values[b, P_b + i] <- k, v

W [(N + 2) K, D] holds each head's rows in rotary pairs (0, K/2, 1, K/2 + 1, ..), values too, so that both partners
sit side by side in the accumulator; what is stored is in the usual order. One key/value head. Robots b, rows i,
R = B H. The prefix lengths P_b and the time rows are read on the device: neither changes what is launched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phyai_kernels.op import Op, chained, gdc_launch_dependents, gdc_wait, jit, tl, triton
from phyai_kernels.skinny import EPS, ROW_TILE, NormInput, Timed, fold_reference, k_block, norm_factor, row_product


def pair_rows(weight: Tensor, head_dim: int) -> Tensor:
    """[heads K, D] -> the same rows, each head's in rotary pairs."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).reshape(weight.shape)


def expert_qkv_reference(
    x: NormInput,
    weight: Tensor,
    shift: Timed,
    rotary: Tensor,
    prefix_length: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Fills queries [R, N K] and rows P_b .. P_b + H - 1 of keys and values [B, C, K].

    weight [(N + 2) K, D] paired, shift with (N + 2) K columns, rotary [2, positions, K / 2] float32 (cosines, sines),
    prefix_length [B] int32.
    """
    robots, _, head_dim = keys.shape
    y = fold_reference(x, weight, shift)
    even, odd = y.unflatten(1, (-1, head_dim // 2, 2)).unbind(-1)  # each [R, N + 2, K / 2]
    place = prefix_length[:, None] + torch.arange(len(y) // robots, device=y.device)  # [B, H]
    cos, sin = rotary[:, place.flatten()].unsqueeze(2)  # each [R, 1, K / 2]
    turned = torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)
    queries.copy_(turned[:, :-2].flatten(1))
    robot = torch.arange(robots, device=y.device)[:, None]
    keys[robot, place] = turned[:, -2].view(robots, -1, head_dim).to(keys.dtype)
    values[robot, place] = torch.cat([even, odd], -1)[:, -1].view(robots, -1, head_dim).to(values.dtype)


@jit
def _store_halves(out, first, second, inside, HALF: tl.constexpr):
    tl.store(out, first.to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(out + HALF, second.to(out.dtype.element_ty), mask=inside[:, None])


@jit
def _expert_qkv_kernel(
    operand_ptr,
    row_sums_ptr,
    weight_ptr,
    shift_ptr,
    shift_stride,
    times_ptr,
    rotary_ptr,
    sin_offset,
    length_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    robot_stride,
    rows,
    rows_per_robot,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    HALF: tl.constexpr = HEAD_DIM // 2
    PAIRS: tl.constexpr = BLOCK_N // 2
    TILES: tl.constexpr = HEAD_DIM // BLOCK_N  # column tiles of a head
    head = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.arange(0, PAIRS)
    robot = row // rows_per_robot
    place = tl.load(length_ptr + robot, mask=inside, other=0) + row - robot * rows_per_robot
    time = tl.load(times_ptr + row, mask=inside, other=0)
    if PDL:
        gdc_wait()
    factor = norm_factor(row_sums_ptr, row, inside, rows, WIDTH, EPS)
    shift = tl.load(shift_ptr + time[:, None] * shift_stride + column[None, :])
    y = row_product(operand_ptr, weight_ptr, row, inside, column, 0, WIDTH, WIDTH, BLOCK_K)
    y = y * factor[:, None] + shift
    even, odd = tl.split(tl.reshape(y, (ROWS, PAIRS, 2)))
    first, second = even, odd
    if head <= HEADS:  # values are not rotated
        angle = rotary_ptr + place[:, None] * HALF + tile * PAIRS + pair[None, :]
        cos = tl.load(angle, mask=inside[:, None], other=0.0)
        sin = tl.load(angle + sin_offset, mask=inside[:, None], other=0.0)
        first = even * cos - odd * sin
        second = odd * cos + even * sin
    offset = tile * PAIRS + pair[None, :]
    if head < HEADS:
        query = queries_ptr + row[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + offset
        _store_halves(query, first, second, inside, HALF)
    else:
        token = robot[:, None] * robot_stride + place[:, None] * HEAD_DIM + offset
        if head == HEADS:
            _store_halves(keys_ptr + token, first, second, inside, HALF)
        else:
            _store_halves(values_ptr + token, first, second, inside, HALF)


def expert_qkv_triton(
    x: NormInput,
    weight: Tensor,
    shift: Timed,
    rotary: Tensor,
    prefix_length: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    pdl: bool = False,
) -> None:
    """Same contract as the reference, in one launch. keys and values may be one layer of a larger buffer."""
    (rows, width), (robots, _, head_dim) = x.operand.shape, keys.shape
    block = min(64, head_dim)
    grid = (weight.shape[0] // block, triton.cdiv(rows, ROW_TILE))
    _expert_qkv_kernel[grid](
        *x,
        weight,
        shift.table,
        shift.table.stride(0),
        shift.times,
        rotary,
        rotary.stride(0),
        prefix_length,
        queries,
        keys,
        values,
        keys.stride(0),
        rows,
        rows // robots,
        WIDTH=width,
        HEADS=queries.shape[1] // head_dim,
        HEAD_DIM=head_dim,
        EPS=EPS,
        ROWS=ROW_TILE,
        BLOCK_N=block,
        BLOCK_K=k_block(width),
        num_stages=4,
        **chained(pdl),
    )


EXPERT_QKV = Op("expert_qkv", expert_qkv_reference, expert_qkv_triton)
