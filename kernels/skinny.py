"""Pieces shared by the kernels whose operand has few rows (one chunk per robot): a row tile, a product, a fold.

The adaptive norm of the action expert costs no pass of its own:

    norm(x) @ W^T = r * ((x * (1 + scale)) @ W^T) + shift @ W^T,    r = 1 / sqrt(sum(x^2) / D + eps)

Whoever produces x also writes the operand x * (1 + scale) of the next product and sum(x^2) per row and column tile
(row_sums [D / 64, R]); shift @ W^T is a table. The consumer applies r and adds the table row to its accumulator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phyai_kernels.op import jit, tl

ROW_TILE = 64  # rows of a tile: the smallest a tensor core instruction of a warp group takes
SUM_TILE = 64  # columns behind one entry of row_sums
EPS = 1e-6


def k_block(count: int) -> int:
    """K elements of one loop turn: the largest power of two up to 128 that divides `count`."""
    block = min(128, count & -count)
    assert block >= 16, f"a product over {count} elements does not split into blocks of 16"
    return block


class NormInput(NamedTuple):
    """What a product behind a norm reads: x * (1 + scale) [R, D] and the squares of x, row_sums [D / 64, R] float32."""

    operand: Tensor
    row_sums: Tensor


class Timed(NamedTuple):
    """A float32 table [T, N] over flow times (rows may be apart) and the row each of the R rows uses, int32 [R]."""

    table: Tensor
    times: Tensor

    def rows(self) -> Tensor:
        """[R, N]."""
        return self.table[self.times.long()]


def fold_reference(x: NormInput, weight: Tensor, shift: Timed) -> Tensor:
    """norm(x) @ W^T as float32 [R, N], for weight [N, D] and shift @ W^T in a table of N columns."""
    factor = torch.rsqrt(x.row_sums.sum(0) / weight.shape[1] + EPS)  # [R]
    return x.operand.float() @ weight.float().T * factor[:, None] + shift.rows()


def write_norm_input(x: Tensor, scale: Timed, out: NormInput) -> None:
    """Fills `out` for x [R, D] float32 and scale (1 + s)."""
    out.operand.copy_(x * scale.rows())
    out.row_sums.copy_(x.square().unflatten(1, (-1, SUM_TILE)).sum(-1).T)


@jit
def row_product(
    operand_ptr, weight_ptr, row, inside, column, start, K: tl.constexpr, COUNT: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Rows of operand [R, K] times rows `column` of weight [N, K], over K from `start` on, COUNT elements."""
    k = start + tl.arange(0, BLOCK_K)
    operand = operand_ptr + row[:, None] * K + k[None, :]
    weight = weight_ptr + column[None, :] * K + k[:, None]
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    for step in range(0, COUNT, BLOCK_K):
        a = tl.load(operand + step, mask=inside[:, None], other=0.0)
        w = tl.load(weight + step)
        total = tl.dot(a, w, total, input_precision="ieee")
    return total


@jit
def norm_factor(row_sums_ptr, row, inside, rows, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """1 / rms of x per row, from its sums of squares [WIDTH / 64, rows]."""
    tile = tl.arange(0, WIDTH // 64)
    sums = tl.load(row_sums_ptr + tile[:, None] * rows + row[None, :], mask=inside[None, :], other=0.0)
    return tl.rsqrt(tl.sum(sums, 0) / WIDTH + EPS)
