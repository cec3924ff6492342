"""Guards, for the making of profiles, against: a candidate left out or measured twice, figures of buffers that still
hold zeros, work that is planned instead of run, and one candidate that fails and takes the others with it.
"""

from __future__ import annotations

import pytest
import torch

from phyai_kernels.add_rms_norm import ADD_RMS_NORM
from phyai_kernels.measuring import MeasuringDispatcher
from phyai_kernels.op import Candidate, Op

CPU = torch.device("cpu")
X = torch.ones(3)
PROBLEM = "float32[3]"


class Counted:
    """A candidate of x <- f(x) that counts its runs and keeps what it saw."""

    def __init__(self, name, error=None, refusal=None, factor=1.0):
        self.runs, self.seen, self._error, self._factor = 0, None, error, factor
        self.candidate = Candidate(name, self._run, lambda *_: refusal)

    def _run(self, x):
        self.runs, self.seen = self.runs + 1, x.clone()
        if self._error:
            raise self._error
        x *= self._factor


def make_op(*counted, **more):
    return Op("op", lambda x: x, first=tuple(one.candidate for one in counted), **more)


def test_every_candidate_that_can_run_is_measured_once_after_the_buffers_were_filled():
    able, refused = Counted("able"), Counted("refused", refusal="never")
    op, x = make_op(able, refused), torch.zeros(3)
    dispatcher = MeasuringDispatcher(CPU)
    for _ in range(2):
        assert dispatcher.pick(op, x) is able.candidate.run
    assert able.runs == 0
    x.fill_(7.0)
    told = []
    profile = dispatcher.measure(lambda *what: told.append(what))
    assert told == [("op", PROBLEM)] and set(profile.times_us["op"][PROBLEM]) == {"able", "reference"}
    assert able.seen.eq(7.0).all() and refused.runs == 0
    runs = able.runs
    dispatcher.measure()
    assert able.runs == runs


def test_what_is_known_is_not_measured_again():
    able = Counted("able")
    op = make_op(able)
    first = MeasuringDispatcher(CPU)
    first.pick(op, X)
    runs = (first.measure(), able.runs)[1]
    second = MeasuringDispatcher(CPU, first.profile)
    second.pick(op, X)
    second.pick(op, torch.ones(4))
    assert set(second.measure().times_us["op"]) == {PROBLEM, "float32[4]"} and able.runs == 2 * runs


def test_a_candidate_that_fails_is_noted_and_not_chosen():
    broken, fine = Counted("broken", error=RuntimeError("no compiler")), Counted("fine")
    dispatcher = MeasuringDispatcher(CPU)
    dispatcher.pick(make_op(broken, fine), X)
    assert dispatcher.measure().times_us["op"][PROBLEM]["broken"] == "no compiler"
    chosen = dispatcher.choose()
    assert chosen.choices[0].taken in ("fine", "reference")
    assert chosen.choices[0].reasons["broken"] == "refused: failed when it was measured: no compiler"
    reasons = {name: chosen.choices[0].reasons[name] for name in ("fine", "reference")}
    assert all("us measured" in reason for reason in reasons.values())
    assert reasons[chosen.choices[0].taken].startswith("taken: ")


@pytest.mark.parametrize(("factor", "wrong"), [(1.2, "2.0e-01"), (float("nan"), "inf"), (1.01, None)])
def test_a_candidate_with_a_wrong_result_is_never_chosen_however_fast(factor, wrong):
    candidate, x = Counted("doubtful", factor=factor), torch.ones(3)
    dispatcher = MeasuringDispatcher(CPU)
    dispatcher.pick(make_op(candidate), x)
    figure = dispatcher.measure().times_us["op"][PROBLEM]["doubtful"]
    if wrong is None:
        assert isinstance(figure, float)
        return
    assert figure == f"wrong result, relative L2 {wrong}" and x.eq(1.0).all()
    (choice,) = dispatcher.choose().choices
    assert choice.taken == "reference" and wrong in choice.reasons["doubtful"]


def test_what_is_updated_in_place_is_compared_from_the_same_start():
    """Timing one candidate changes the buffers; the next one is compared as if it had not."""
    growing, x = Counted("growing", factor=1.5), torch.ones(3)
    dispatcher = MeasuringDispatcher(CPU)
    dispatcher.pick(Op("op", lambda x: x.mul_(1.5), first=(growing.candidate,)), x)
    times = dispatcher.measure().times_us["op"][PROBLEM]
    assert all(isinstance(figure, float) for figure in times.values()) and x[0] > 1e3


def test_without_memory_for_the_reference_the_others_are_measured_all_the_same():
    def fail(x):
        raise RuntimeError("out of memory\nand much more")

    dispatcher = MeasuringDispatcher(CPU)
    dispatcher.pick(Op("op", fail, first=(Counted("fine").candidate,)), X)
    times = dispatcher.measure().times_us["op"][PROBLEM]
    assert times["reference"] == "out of memory" and times["fine"] >= 0
    assert dispatcher.choose().choices[0].taken == "fine"


def test_results_in_tuples_count_and_what_launches_return():
    pair = (torch.ones(2), torch.zeros(2))
    right = Candidate("right", lambda given: given[1].copy_(given[0]), lambda *_: None)
    lazy = Candidate("lazy", lambda given: None, lambda *_: None)
    plan = Candidate("plan", lambda x: 2 * x, lambda *_: None)
    dispatcher = MeasuringDispatcher(CPU)
    dispatcher.pick(Op("pair", right.run, first=(lazy,)), pair)
    dispatcher.pick(Op("plan", lambda x: x, first=(plan,), launch=lambda made: [made]), X)
    times = dispatcher.measure().times_us
    assert "wrong" in times["pair"]["(float32[2] float32[2])"]["lazy"] and "wrong" in times["plan"][PROBLEM]["plan"]


def test_what_only_prepares_is_measured_by_its_launches_made_of_the_fastest_parts():
    """A plan asks for its parts while it is made; they come first, and the plan that is timed uses what they showed."""
    dispatcher, launched = MeasuringDispatcher(CPU), []
    part = make_op(Counted("slow", error=RuntimeError("slow")), Counted("fast"))

    def plan(x):
        return [dispatcher.pick(part, x)]

    whole = Op("plan", plan, launch=launched.append)
    dispatcher.pick(whole, X)
    profile = dispatcher.measure()
    assert list(profile.times_us) == ["op", "plan"] and profile.times_us["plan"][PROBLEM]["reference"] >= 0
    assert len(launched) > 10 and all(launches == launched[0] for launches in launched)
    assert launched[0][0] is not part.first[0].run


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_kernels_and_references_are_timed_in_graphs():
    device = torch.device("cuda")
    x, branch, out = torch.randn(3, 64, 512, device=device, dtype=torch.bfloat16)
    dispatcher = MeasuringDispatcher(device)
    dispatcher.pick(ADD_RMS_NORM, x, branch, torch.zeros(512, device=device), out)
    with torch.inference_mode():
        ((_, times),) = dispatcher.measure().times_us[ADD_RMS_NORM.name].items()
    assert set(times) == {"triton", "reference"} and 0 < times["triton"] < times["reference"]
