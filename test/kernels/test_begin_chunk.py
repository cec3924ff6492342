"""Guards against: rows of another robot or step, leading rows that are overwritten, times cut off and not rounded."""

from __future__ import annotations

import pytest
import torch
from comparison import draw, poisoned

from phyai_kernels.begin_chunk import BEGIN_CHUNK, Request, Rows

STEPS, HORIZON, ACTIONS = 10, 6, 7


def make_request(robots, where):
    generator = torch.Generator().manual_seed(robots)
    noise, leftover = (draw(generator, robots, HORIZON, ACTIONS, device=where) for _ in range(2))
    abc = draw(generator, STEPS, robots + 1, HORIZON, 3, device=where)[:, 1:]  # some robots of a larger batch
    times = torch.randint(STEPS + 1, (STEPS, robots + 1, HORIZON), generator=generator).float().to(where)
    return Request(noise, leftover, leftover > 0, abc, (times * 0.1)[:, 1:])


def make_rows(robots, lead, where):
    rows = robots * (lead + HORIZON)
    state, prefix = poisoned(rows, ACTIONS, device=where), poisoned(rows, ACTIONS, device=where)
    abc = poisoned(STEPS, rows + 2, 3, device=where)[:, :rows]
    return Rows(state, prefix, abc, torch.full((STEPS, rows + 2), -1, dtype=torch.int32, device=where)[:, :rows])


def expected(request, lead):
    """Row by row; None where a row is left alone."""
    for robot in range(len(request.noise)):
        yield from [None] * lead
        for row in range(HORIZON):
            start = torch.where(request.starts[robot, row], request.leftover[robot, row], request.noise[robot, row])
            times = [round(float(time) * STEPS) for time in request.flow_times[:, robot, row]]
            yield start, request.leftover[robot, row], request.abc[:, robot, row], times


def check(begin, where, robots, lead):
    request, rows = make_request(robots, where), make_rows(robots, lead, where)
    begin(request, rows, lead)
    for row, wanted in enumerate(expected(request, lead)):
        if wanted is None:
            assert rows.state[row].isnan().all() and rows.abc[:, row].isnan().all() and (rows.times[:, row] == -1).all()
            continue
        start, leftover, abc, times = wanted
        assert torch.equal(rows.state[row], start) and torch.equal(rows.prefix[row], leftover)
        assert torch.equal(rows.abc[:, row], abc) and rows.times[:, row].tolist() == times


@pytest.mark.parametrize(("robots", "lead"), [(1, 0), (1, 1), (3, 2)])
def test_the_kernel_brings_every_row_to_its_place(where, robots, lead):
    check(BEGIN_CHUNK.triton, where, robots, lead)


@pytest.mark.parametrize(("robots", "lead"), [(1, 0), (1, 1), (3, 2)])
def test_so_does_the_reference(robots, lead):
    check(BEGIN_CHUNK.reference, torch.device("cpu"), robots, lead)
