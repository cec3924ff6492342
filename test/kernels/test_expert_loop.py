"""Guards against: a table or buffer of the wrong layer, norm or step, a missing dependency between launches, results
that depend on what an earlier chunk left behind, and a Hopper path that runs where it cannot.
"""

from __future__ import annotations

import pytest
import torch
from comparison import relative_error
from expert_model import FULL, RandomExpert, Sizes

from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.expert_loop import ExpertLoop
from phyai_kernels.expert_loop_hopper import HopperExpertLoop, HopperPlan, refuse_hopper
from phyai_kernels.expert_loops import Robots, expert_loops, run_loops


def test_the_reference_loop_is_the_formula():
    expert = RandomExpert(Sizes(), torch.float32, "cpu")
    weights = expert.packed()
    inputs = expert.inputs(weights, [20, 7], chunk=5, capacity=30)
    result = ExpertLoop(weights, inputs, "reference").run()
    assert relative_error(result, expert.formula(inputs)) < 1e-5


def test_the_kernels_are_the_formula(where):
    expert = RandomExpert(Sizes(steps=2, heads=2, mlp_width=64), torch.float32, where)
    weights = expert.packed()
    inputs = expert.inputs(weights, [20, 7], chunk=5, capacity=40)
    loop = ExpertLoop(weights, inputs, "triton")
    for lengths in ([20, 7], [3, 26]):
        inputs.prefix_length.copy_(torch.tensor(lengths))
        assert relative_error(loop.run(), expert.formula(inputs)) < 2e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("chunk", "lengths"), [(50, (968, 560)), (32, (81, 0)), (64, (900, 3))])
def test_the_hopper_loop_is_the_formula_and_repeats_bitwise(chunk, lengths):
    sizes = Sizes(width=1024, depth=3, heads=8, head_dim=256, mlp_width=4096, actions=32, steps=3)
    expert = RandomExpert(sizes, torch.bfloat16, torch.device("cuda"))
    weights = expert.packed()
    inputs = expert.inputs(weights, [lengths[0]], chunk, capacity=lengths[0] + chunk)
    if (reason := refuse_hopper(weights, inputs)) is not None:
        pytest.skip(reason)
    loop = HopperExpertLoop(weights, inputs)
    for length in lengths:
        inputs.prefix_length.fill_(length)
        inputs.states[1:] = float("nan")
        first = loop.run().clone()
        assert relative_error(first, expert.formula(inputs)) < 8e-3
        assert all(torch.equal(loop.run(), first) for _ in range(20))


def test_the_hopper_loop_names_what_it_cannot_take():
    expert = RandomExpert(Sizes(), torch.float32, "cpu")
    weights = expert.packed()
    assert "float32" in refuse_hopper(weights, expert.inputs(weights, [20], 5, 30))
    assert "2 robots" in refuse_hopper(weights, expert.inputs(weights, [20, 7], 5, 30))


@pytest.mark.parametrize("lengths", [[20], [20, 7, 11]])
def test_loops_are_chosen_with_a_reason_for_every_way(lengths):
    expert = RandomExpert(Sizes(), torch.float32, "cpu")
    weights, dispatcher, robots = expert.packed(), Dispatcher(torch.device("cpu")), len(lengths)
    made = []

    def make(first, count):
        made.append(expert.inputs(weights, lengths[first : first + count], chunk=5, capacity=30))
        return made[-1]

    work = Robots(weights, robots, make)
    loops = dispatcher.pick(expert_loops(robots), work)(work)
    run_loops(loops)
    assert len(loops) == 1 and loops[0].inputs is made[-1]
    assert relative_error(loops[0].inputs.states[-1], expert.formula(loops[0].inputs)) < 1e-5
    (choice,) = dispatcher.choices
    order = ["hopper, in turn", "triton"] if robots < 3 else ["triton", "hopper, in turn"]
    assert list(choice.reasons) == [*order, "reference"] and choice.taken == "reference"
    assert "float32" in choice.reasons["hopper, in turn"] and "cpu" in choice.reasons["triton"]
    assert choice.problem.startswith("1 robot: " if robots == 1 else f"{robots} robots: ")


def test_the_default_plan_covers_the_checkpoint():
    plan = HopperPlan()
    for tiles, k in ((plan.qkv, FULL.width), (plan.out, FULL.heads * FULL.head_dim), (plan.down, FULL.mlp_width)):
        assert k % (tiles.splits * tiles.chunk) == 0
        assert tiles.ring * tiles.chunk <= k
