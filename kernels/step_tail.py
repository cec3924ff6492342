"""What stands between two passes through the expert, in one launch: final norm, action head, update, next input.

    v = norm(x) @ O^T + o   (folded, see skinny.py)
    s' = a s + b v + c Y    per row, plain Euler and real-time chunking alike (see affine_update.py);
                            s' = s + v / N in columns that real-time chunking leaves alone
    x = s' @ I^T + i;   operand = x * (1 + scale);   row_sums = sum of x^2 per 64 columns

The action state s, Y, the coefficients and the weights of both projections are float32. With `first` there is no
velocity yet: the state goes into the network as it is. Where the entry has a start, x is not finished here:

    x = start;   operand = silu(s' @ I^T + i)   of a projection that adds to x (see gated_projection.py); no row_sums
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import silu

from phyai_kernels.op import Op, chained, gdc_launch_dependents, gdc_wait, jit, tl, triton
from phyai_kernels.skinny import (
    EPS,
    ROW_TILE,
    SUM_TILE,
    NormInput,
    Timed,
    fold_reference,
    k_block,
    norm_factor,
    write_norm_input,
)


class Head(NamedTuple):
    """Action head O [A', D] float32; shift @ O^T + o in a table of A' columns."""

    weight: Tensor
    shift: Timed


class Entry(NamedTuple):
    """Action input projection I [D, A'] float32, its bias i, the scale (1 + s) of the first norm behind it.

    start [R, D] float32: what x begins with where a projection follows.
    """

    weight: Tensor
    bias: Timed
    scale: Timed
    start: Tensor | None = None


class Update(NamedTuple):
    """One affine update: state, Y and the new state [R, A'], coefficients [R, 3], all float32; no two share memory.

    columns bool [B, A']: where the coefficients apply; the others take an Euler step of 1 / `steps`.
    """

    state: Tensor
    prefix: Tensor
    abc: Tensor
    columns: Tensor
    out: Tensor
    steps: int


def step_tail_reference(
    final: NormInput, head: Head, update: Update, entry: Entry, residual: Tensor, x: NormInput, first: bool = False
) -> None:
    """From the expert's output `final` to update.out, residual [R, D] float32 and x, the input of its next pass."""
    update.out.copy_(update.state)
    if not first:
        velocity = fold_reference(final, *head)
        a, b, c = update.abc[..., None].unbind(1)
        conditioned = a * update.state + b * velocity + c * update.prefix
        columns = update.columns.repeat_interleave(len(velocity) // len(update.columns), 0)
        update.out.copy_(conditioned.where(columns, update.state + velocity / update.steps))
    entered = update.out @ entry.weight.T + entry.bias.rows()
    if entry.start is None:
        residual.copy_(entered)
        write_norm_input(residual, entry.scale, x)
    else:
        residual.copy_(entry.start)
        x.operand.copy_(silu(entered))


@jit
def _step_tail_kernel(
    final_ptr,
    final_sums_ptr,
    head_ptr,
    head_shift_ptr,
    times_ptr,
    state_ptr,
    prefix_ptr,
    abc_ptr,
    columns_ptr,
    next_state_ptr,
    steps,
    entry_ptr,
    entry_bias_ptr,
    entry_bias_stride,
    scale_ptr,
    scale_stride,
    next_times_ptr,
    start_ptr,
    residual_ptr,
    operand_ptr,
    row_sums_ptr,
    rows,
    rows_per_robot,
    ACTIONS: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    FIRST: tl.constexpr,
    MIXES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    tile = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    action = tl.arange(0, PADDED)
    known = action < ACTIONS
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    entry = tl.load(entry_ptr + column[None, :] * ACTIONS + action[:, None], mask=known[:, None], other=0.0)
    next_time = tl.load(next_times_ptr + row, mask=inside, other=0)
    bias = tl.load(entry_bias_ptr + next_time[:, None] * entry_bias_stride + column[None, :])
    scale = tl.load(scale_ptr + next_time[:, None] * scale_stride + column[None, :])
    if PDL:
        gdc_wait()
    cell = row[:, None] * ACTIONS + action[None, :]
    cells = inside[:, None] & known[None, :]
    state = tl.load(state_ptr + cell, mask=cells, other=0.0)
    if not FIRST:
        velocity = tl.zeros((ROWS, PADDED), tl.float32)
        for start in range(0, WIDTH, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            x = tl.load(final_ptr + row[:, None] * WIDTH + k[None, :], mask=inside[:, None], other=0.0)
            weight = tl.load(head_ptr + action[None, :] * WIDTH + k[:, None], mask=known[None, :], other=0.0)
            velocity = tl.dot(x.to(tl.float32), weight, velocity, input_precision=PRECISION)
        velocity *= norm_factor(final_sums_ptr, row, inside, rows, WIDTH, EPS)[:, None]
        time = tl.load(times_ptr + row, mask=inside, other=0)
        velocity += tl.load(head_shift_ptr + time[:, None] * ACTIONS + action[None, :], mask=known[None, :], other=0.0)
        a = tl.load(abc_ptr + row * 3, mask=inside, other=0.0)
        b = tl.load(abc_ptr + row * 3 + 1, mask=inside, other=0.0)
        c = tl.load(abc_ptr + row * 3 + 2, mask=inside, other=0.0)
        prefix = tl.load(prefix_ptr + cell, mask=cells, other=0.0)
        conditioned = a[:, None] * state + b[:, None] * velocity + c[:, None] * prefix
        column_ptr = columns_ptr + (row // rows_per_robot)[:, None] * ACTIONS + action[None, :]
        state = tl.where(tl.load(column_ptr, mask=cells, other=0) != 0, conditioned, state + velocity / steps)
    if tile == 0:
        tl.store(next_state_ptr + cell, state, mask=cells)
    x = tl.dot(state, entry, input_precision=PRECISION) + bias
    place = row[:, None] * WIDTH + column[None, :]
    if MIXES:
        operand = x / (1.0 + tl.exp2(-1.4426950408889634 * x))
        x = tl.load(start_ptr + place, mask=inside[:, None], other=0.0)
    else:
        operand = x * scale
        tl.store(row_sums_ptr + tile * rows + row, tl.sum(x * x, 1), mask=inside)
    tl.store(residual_ptr + place, x, mask=inside[:, None])
    tl.store(operand_ptr + place, operand.to(operand_ptr.dtype.element_ty), mask=inside[:, None])


def step_tail_triton(
    final: NormInput,
    head: Head,
    update: Update,
    entry: Entry,
    residual: Tensor,
    x: NormInput,
    first: bool = False,
    precision: str = "tf32",
    pdl: bool = False,
) -> None:
    """Same contract as the reference, in one launch. `precision` is that of the float32 products (tl.dot)."""
    (rows, actions), width = update.state.shape, residual.shape[1]
    _step_tail_kernel[(width // SUM_TILE, triton.cdiv(rows, ROW_TILE))](
        *final,
        head.weight,
        head.shift.table,
        head.shift.times,
        *update,
        entry.weight,
        entry.bias.table,
        entry.bias.table.stride(0),
        entry.scale.table,
        entry.scale.table.stride(0),
        entry.scale.times,
        entry.start if entry.start is not None else residual,
        residual,
        *x,
        rows,
        rows // len(update.columns),
        ACTIONS=actions,
        PADDED=max(16, triton.next_power_of_2(actions)),
        WIDTH=width,
        EPS=EPS,
        FIRST=first,
        MIXES=entry.start is not None,
        ROWS=ROW_TILE,
        BLOCK_N=SUM_TILE,
        BLOCK_K=k_block(width),
        PRECISION=precision,
        num_stages=3,
        **chained(pdl),
    )


STEP_TAIL = Op("step_tail", step_tail_reference, step_tail_triton)
