"""Which loops serve so many robots: Hopper loops in turn, or one loop for all by Triton or the references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from phyai_kernels.expert_loop import ExpertLoop, LoopInputs
from phyai_kernels.expert_loop_hopper import HopperExpertLoop, refuse_hopper
from phyai_kernels.expert_qkv import EXPERT_QKV
from phyai_kernels.expert_weights import ExpertWeights
from phyai_kernels.op import Candidate, Op, chains

IN_TURN = 2  # robots up to which, unmeasured, Hopper loops in turn are taken for faster (docs/kernels.md)


@dataclass(frozen=True)
class Robots:
    """What loops are wanted for. `make(first, count)` makes the inputs of robots first .. first + count - 1."""

    weights: ExpertWeights
    count: int
    make: Callable[[int, int], LoopInputs]

    @cached_property
    def first(self) -> LoopInputs:
        """The inputs of the first robot alone."""
        return self.make(0, 1)

    def __str__(self) -> str:
        steps, rows = self.first.times.shape
        sizes = f"{steps} steps, {rows} rows over {self.first.keys.shape[2]} keys"
        width, depth = self.weights.entry.shape[0], len(self.weights.qkv)
        kind = str(self.weights.qkv.dtype).removeprefix("torch.")
        return f"{self.count} {'robot' if self.count == 1 else 'robots'}: {sizes}, {depth} layers of {width} {kind}"


def expert_loops(robots: int) -> Op:
    """The operation whose candidates give loops that together serve so many robots, in their order."""
    candidates = (HOPPER, TRITON) if robots <= IN_TURN else (TRITON, HOPPER)
    return Op("expert_loops", lambda work: _together(work, "reference"), first=candidates, launch=run_loops)


def run_loops(loops: Sequence[ExpertLoop]) -> Tensor:
    """Launches them one after the other; all results [R, A']."""
    return torch.cat([loop.run() for loop in loops])


def _in_turn(work: Robots) -> list[ExpertLoop]:
    return [HopperExpertLoop(work.weights, work.make(robot, 1)) for robot in range(work.count)]


def _together(work: Robots, kernels: str) -> list[ExpertLoop]:
    pdl = kernels == "triton" and chains(work.weights.qkv.device)
    return [ExpertLoop(work.weights, work.make(0, work.count), kernels, pdl)]


def _refuse_triton(device: torch.device, work: Robots) -> str | None:
    return EXPERT_QKV.refuse(device)


HOPPER = Candidate("hopper, in turn", _in_turn, lambda device, work: refuse_hopper(work.weights, work.first))
TRITON = Candidate("triton", lambda work: _together(work, "triton"), _refuse_triton)
