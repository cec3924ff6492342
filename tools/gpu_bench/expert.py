"""The pi0.5 action expert: 10 denoise steps, 18 layers, chunk 50, prefix 968 (three cameras, 200 prompt tokens)."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from expert_model import FULL, RandomExpert

from gpu_bench.timing import replay_times
from phyai_kernels.expert_loop import ExpertLoop
from phyai_kernels.expert_loop_hopper import HopperExpertLoop, HopperPlan, Tiles

PREFIX, CHUNK = 968, 50
OPTIONS = {
    "out": [Tiles(64, 128, 4, 4), Tiles(64, 256, 2, 4), Tiles(64, 128, 3, 4), Tiles(32, 128, 4, 4)],
    "down": [Tiles(64, 128, 4, 8), Tiles(64, 256, 2, 8), Tiles(32, 256, 4, 4), Tiles(32, 128, 8, 4)],
    "qkv": [Tiles(64, 256, 2), Tiles(64, 128, 4), Tiles(32, 128, 2)],
    "gate_up": [Tiles(64, 256, 3), Tiles(64, 128, 6), Tiles(64, 128, 5)],
}


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """L2 norm of the difference over that of `expected`."""
    return float((result.double() - expected.double()).norm() / expected.double().norm())


def without(loop: ExpertLoop, method: str) -> ExpertLoop:
    """The loop with one launch left out: wrong results, its cost in the loop."""
    setattr(loop, method, lambda *_: None)
    return loop


def measure() -> dict[str, object]:
    """Error, repeatability and time of the whole loop; time of variants and of each launch."""
    expert = RandomExpert(FULL, torch.bfloat16, torch.device("cuda"))
    weights = expert.packed()
    inputs = expert.inputs(weights, [PREFIX], CHUNK, PREFIX + CHUNK)
    expected = expert.formula(inputs)
    report: dict[str, object] = {}
    loops = {
        "hopper": HopperExpertLoop(weights, inputs),
        "triton_pdl": ExpertLoop(weights, inputs, "triton", pdl=True),
        "triton": ExpertLoop(weights, inputs, "triton"),
    }
    for name, loop in loops.items():
        result = loop.run().clone()
        report[f"{name}_error"] = float(f"{relative_error(result, expected):.2e}")
        report[f"{name}_repeats"] = all(torch.equal(loop.run(), result) for _ in range(50))
        report[f"{name}_us"] = replay_times(loop.run, runs=200)
    report["other_lengths_us"] = _time_lengths(loops["hopper"], inputs)
    report["cost_us_a_step"] = {
        "hopper": _costs(lambda: HopperExpertLoop(weights, inputs), report["hopper_us"]["p50"]),
        "triton_pdl": _costs(lambda: ExpertLoop(weights, inputs, "triton", pdl=True), report["triton_pdl_us"]["p50"]),
    }
    return report


def search_plans() -> dict[str, object]:
    """The fastest tiles for the whole loop, one product after the other, twice."""
    expert = RandomExpert(FULL, torch.bfloat16, torch.device("cuda"))
    weights = expert.packed()
    inputs = expert.inputs(weights, [PREFIX], CHUNK, PREFIX + CHUNK)
    plan, tried = HopperPlan(), {}
    for product, options in [*OPTIONS.items(), *OPTIONS.items()]:
        for tiles in options:
            candidate = dataclasses.replace(plan, **{product: tiles})
            if candidate not in tried:
                tried[candidate] = replay_times(HopperExpertLoop(weights, inputs, candidate).run, runs=30)["p50"]
        plan = min(tried, key=tried.get)
    ranked = sorted(tried, key=tried.get)
    return {"best": str(plan), "us": {str(candidate).replace("Tiles", ""): tried[candidate] for candidate in ranked}}


def _costs(make, whole_us: float) -> dict[str, float]:
    """Microseconds a step that each launch costs in the loop: what is saved when it is left out."""
    launches = ("project_qkv", "attend", "project_out", "expand", "project_down", "tail")
    times = {name: replay_times(without(make(), name).run)["p50"] for name in launches}
    return {name: round((whole_us - us) / 10, 1) for name, us in times.items()}


def _time_lengths(loop: ExpertLoop, inputs) -> dict[int, float]:
    times = {}
    for length in (560, 712, 816):
        inputs.prefix_length.fill_(length)
        times[length] = replay_times(loop.run)["p50"]
    inputs.prefix_length.fill_(PREFIX)
    return times


def measure_batches() -> dict[str, object]:
    """Portable kernels for 1, 2, 4, 8 robots: error of a short loop, milliseconds of the full one."""
    report = {}
    for robots in (1, 2, 4, 8):
        small = RandomExpert(dataclasses.replace(FULL, depth=2, steps=2), torch.bfloat16, torch.device("cuda"))
        error = _short_loop_error(small, robots)
        expert = RandomExpert(FULL, torch.bfloat16, torch.device("cuda"))
        weights = expert.packed()
        inputs = expert.inputs(weights, [PREFIX] * robots, CHUNK, PREFIX + CHUNK)
        report[robots] = {"error": error, **replay_times(ExpertLoop(weights, inputs, "triton", pdl=True).run)}
    return report


def _short_loop_error(expert: RandomExpert, robots: int) -> float:
    weights = expert.packed()
    lengths = list(itertools.islice(itertools.cycle((968, 560, 712, 816)), robots))
    inputs = expert.inputs(weights, lengths, CHUNK, PREFIX + CHUNK)
    result = ExpertLoop(weights, inputs, "triton", pdl=True).run()
    return relative_error(result, expert.formula(inputs))
