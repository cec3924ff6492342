"""A whole pi0.5 chunk in one CUDA graph: vision, prefix and ten denoise steps, three cameras, 200 prompt tokens."""

from __future__ import annotations

import torch
from expert_model import FULL, RandomExpert

from gpu_bench.prefix import CUDA, IMAGE_ROWS, TOKENS, WIDTH, make_pass, make_vision, normal
from gpu_bench.timing import replay_times
from phyai_kernels.dispatch import Dispatcher
from phyai_kernels.expert_loop_hopper import HopperExpertLoop

CHUNK = 50


def measure() -> dict[str, object]:
    """p50 and p99 of 200 replays in a row, in bfloat16 and with an FP8 prefix; the stages share no data here."""
    expert = RandomExpert(FULL, torch.bfloat16, CUDA)
    weights = expert.packed()
    loop = HopperExpertLoop(weights, expert.inputs(weights, [TOKENS], CHUNK, TOKENS + CHUNK))
    report = {}
    for name, fp8 in (("bfloat16", False), ("fp8 prefix", True)):
        prefix, start = make_pass(fp8, Dispatcher(CUDA)), normal(TOKENS, WIDTH)
        vision = make_vision(Dispatcher(CUDA), prefix.x[:IMAGE_ROWS])
        patches = vision.x.clone()

        def run(vision=vision, prefix=prefix, patches=patches, start=start):
            vision.x.copy_(patches)
            prefix.x.copy_(start)
            for stage in (vision, prefix, loop):
                stage.run()

        report[name] = replay_times(run, runs=200)
        del vision, prefix, run
    return report
