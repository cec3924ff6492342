"""Guards against: a row or column tile left out, a wrong time row, a wrong robot's prefix length, rotary partners
mixed up, keys beyond the end that leak in, splits added twice, counters that are not left at zero, inputs written.
"""

from __future__ import annotations

import pytest
import torch
from comparison import assert_agrees, draw, poisoned

from phyai_kernels.expert_attention import EXPERT_ATTENTION
from phyai_kernels.expert_qkv import EXPERT_QKV, pair_rows
from phyai_kernels.gated_mlp import GATED_MLP, interleave_rows
from phyai_kernels.gated_projection import GATED_PROJECTION, projection_workspace
from phyai_kernels.skinny import NormInput, Timed, write_norm_input
from phyai_kernels.step_tail import STEP_TAIL, Entry, Head, Update

DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, id="bfloat16")]
ROWS = [(1, 1), (1, 50), (2, 7), (3, 45)]  # robots B, chunk rows H: below, at and over one row tile
WIDTH, HEADS, HEAD_DIM, MLP_WIDTH, TIMES, CAPACITY = 128, 3, 128, 96, 4, 200


@pytest.fixture(params=DTYPES)
def dtype(request, where):
    if where.type == "cpu" and request.param == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16 wrongly")
    return request.param


class Inputs:
    """Seeded inputs for R rows."""

    def __init__(self, rows, dtype, device):
        self.generator = torch.Generator().manual_seed(rows)
        self.rows, self.dtype, self.device = rows, dtype, device
        self.times = torch.randint(TIMES, (rows,), generator=self.generator, dtype=torch.int32).to(device)

    def __call__(self, *shape, dtype=torch.float32, scale=1.0):
        return draw(self.generator, *shape, dtype=dtype, device=self.device, scale=scale)

    def weight(self, *shape):
        return self(*shape, dtype=self.dtype, scale=shape[-1] ** -0.5)

    def timed(self, columns):
        return Timed(self(TIMES, 2, columns)[:, 1], self.times)  # rows of a larger table

    def empty(self, *shape, dtype=None):
        return poisoned(*shape, dtype=dtype or self.dtype, device=self.device)

    def norm_input(self, width=WIDTH):
        x = self.empty_norm_input(width)
        write_norm_input(self(self.rows, width), self.timed(width), x)
        return x

    def empty_norm_input(self, width=WIDTH):
        return NormInput(self.empty(self.rows, width), self.empty(width // 64, self.rows, dtype=torch.float32))


def run_both(op, make):
    """Calls reference and kernel on equal, separately drawn arguments; returns what each left in them."""
    results = []
    for function in (op.reference, op.triton):
        arguments, outputs = make()
        function(*arguments)
        results.append(outputs)
    return results


def assert_all_agree(op, make):
    expected, result = run_both(op, make)
    for one, other in zip(result, expected, strict=True):
        assert_agrees(one, other)


@pytest.mark.parametrize(("robots", "chunk"), ROWS)
def test_queries_keys_and_values(where, dtype, robots, chunk):
    def make():
        inputs = Inputs(robots * chunk, dtype, where)
        x = inputs.norm_input()
        weight = pair_rows(inputs.weight((HEADS + 2) * HEAD_DIM, WIDTH), HEAD_DIM)
        angle = inputs(300, HEAD_DIM // 2)
        rotary = torch.stack([angle.cos(), angle.sin()])
        lengths = torch.tensor([37, 0, 101][:robots], dtype=torch.int32, device=where)
        buffer = inputs(2, robots, 3, CAPACITY, HEAD_DIM, dtype=dtype)  # keys and values of three layers
        queries = inputs.empty(robots * chunk, HEADS * HEAD_DIM)
        shift = inputs.timed((HEADS + 2) * HEAD_DIM)
        return (x, weight, shift, rotary, lengths, queries, buffer[0, :, 1], buffer[1, :, 1]), (queries, buffer)

    assert_all_agree(EXPERT_QKV, make)


@pytest.mark.parametrize(("robots", "chunk", "lead"), [(*rows, 0) for rows in ROWS] + [(2, 7, 1), (1, 70, 3)])
def test_attention(where, dtype, robots, chunk, lead):
    def make():
        inputs = Inputs(robots * chunk, dtype, where)
        queries = inputs(robots * chunk, HEADS * HEAD_DIM, dtype=dtype)
        keys, values = inputs(2, robots, CAPACITY, HEAD_DIM, dtype=dtype)
        values[:, 190:] = 1e4  # finite, behind the last key of every robot
        lengths = torch.tensor([128, 3, 77][:robots], dtype=torch.int32, device=where)
        out = inputs.empty(robots * chunk, HEADS * HEAD_DIM)
        return (queries, keys, values, lengths, out, lead), (out,)

    assert_all_agree(EXPERT_ATTENTION, make)


def test_leading_rows_see_the_prefix_and_each_other_and_are_seen():
    inputs = Inputs(6, torch.float32, torch.device("cpu"))
    queries, (keys, values) = inputs(6, 2 * HEAD_DIM), inputs(2, 1, 20, HEAD_DIM)
    out, length = inputs.empty(6, 2 * HEAD_DIM), torch.tensor([9], dtype=torch.int32)
    EXPERT_ATTENTION.reference(queries, keys, values, length, out, 2)
    for row, end in ((0, 11), (1, 11), (2, 15), (5, 15)):
        scores = queries[row].view(2, HEAD_DIM) @ keys[0, :end].T * HEAD_DIM**-0.5
        assert_agrees(out[row], (scores.softmax(-1) @ values[0, :end]).flatten())


@pytest.mark.parametrize(("robots", "chunk"), ROWS)
def test_gated_projection(where, dtype, robots, chunk):
    def make():
        inputs = Inputs(robots * chunk, dtype, where)
        operand = inputs(inputs.rows, 512, dtype=dtype)
        residual, x = inputs(inputs.rows, WIDTH), inputs.empty_norm_input()
        weight = inputs.weight(WIDTH, 512)
        return (operand, weight, inputs.timed(WIDTH), inputs.timed(WIDTH), residual, x), (residual, *x)

    assert_all_agree(GATED_PROJECTION, make)


def test_a_workspace_serves_call_after_call(where):
    rows = 70
    inputs = Inputs(rows, torch.float32, where)
    workspace = projection_workspace(rows, WIDTH, 4, where)
    for _ in range(2):
        operand, weight = inputs(rows, 256), inputs.weight(WIDTH, 256)
        gate, scale, residual = inputs.timed(WIDTH), inputs.timed(WIDTH), inputs(rows, WIDTH)
        expected, x = residual.clone(), inputs.empty_norm_input()
        GATED_PROJECTION.reference(operand, weight, gate, scale, expected, inputs.empty_norm_input())
        GATED_PROJECTION.triton(operand, weight, gate, scale, residual, x, workspace)
        assert_agrees(residual, expected)
        assert not workspace[1].any()


@pytest.mark.parametrize(("robots", "chunk"), ROWS)
def test_gated_mlp(where, dtype, robots, chunk):
    def make():
        inputs = Inputs(robots * chunk, dtype, where)
        weight = interleave_rows(inputs.weight(MLP_WIDTH, WIDTH), inputs.weight(MLP_WIDTH, WIDTH))
        x, out = inputs.norm_input(), inputs.empty(inputs.rows, MLP_WIDTH)
        return (x, weight, inputs.timed(2 * MLP_WIDTH), out), (out,)

    assert_all_agree(GATED_MLP, make)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize(("robots", "chunk", "actions"), [(1, 50, 32), (2, 33, 7)])
def test_step_tail(where, dtype, robots, chunk, actions, mixes, first):
    def make():
        inputs = Inputs(robots * chunk, dtype, where)
        rows, width = inputs.rows, 2 * WIDTH
        head = Head(
            inputs(actions, width, scale=width**-0.5), inputs.timed(actions)._replace(table=inputs(TIMES, actions))
        )
        update = Update(
            inputs(rows, actions),
            inputs(rows, actions),
            inputs(rows, 3),
            inputs(robots, actions) > 0,
            inputs.empty(rows, actions, dtype=torch.float32),
            10,
        )
        start = inputs(rows, width) if mixes else None
        entry = Entry(inputs(width, actions), inputs.timed(width), inputs.timed(width), start)
        residual, x = inputs.empty(rows, width, dtype=torch.float32), inputs.empty_norm_input(width)
        outputs = (update.out, residual, x.operand) if mixes else (update.out, residual, *x)
        return (inputs.norm_input(width), head, update, entry, residual, x, first), outputs

    assert_all_agree(STEP_TAIL, make)
