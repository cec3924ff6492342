"""Times Cosmos3-Nano-Policy-DROID of full size on one CUDA device: python tools/gpu_time_cosmos3.py [--runs 10]

Random weights in bfloat16 (29 GB), all of one chunk in one CUDA graph. `phyai-ros bench` takes 200 runs at least, which
are minutes with this policy; here a few have to do. Needs torch, Triton and safetensors; nothing of this repository
installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from gpu_bench_policies import make_environment

PROMPT_TOKENS = 192


def main() -> None:
    """Print milliseconds per stage, memory and the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="tiny, on the CPU: for a try")
    options = parser.parse_args()
    sys.path[:0] = make_environment(Path(tempfile.mkdtemp()))["PYTHONPATH"].split(os.pathsep)
    started_s = time.perf_counter()
    engine = start(options.size)
    print(f"start {time.perf_counter() - started_s:.1f} s")
    for name, values in measure(engine, options.runs).items():
        print(f"{name:12s} p50 {values[len(values) // 2] * 1e3:8.1f} ms   max {values[-1] * 1e3:8.1f} ms")
    for name, floor_s in floors(options.size, engine.device).items():
        print(f"floor {name:10s} {floor_s * 1e3:8.1f} ms")


def start(size: str):
    """An engine whose graph is captured."""
    import torch

    from phyai_adapters.random_policies import random_adapter
    from phyai_core.engine import Engine

    device = torch.device("cuda:0" if size == "full" else "cpu")
    engine = Engine(random_adapter("cosmos3", device, size, prompt_tokens=PROMPT_TOKENS), device)
    engine.warm_up(1)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {peak:.1f} GiB at most")
    return engine


def measure(engine, runs: int) -> dict[str, list[float]]:
    """{total or stage: seconds, ascending} of one observation after the other."""
    from phyai_core.bench import noise_for, random_observation
    from phyai_core.engine import plain_tables

    found: dict[str, list[float]] = {}
    for run in range(runs):
        observation = random_observation(engine.spec, "lift the cube", run)
        started_s = time.perf_counter()
        result = engine.infer(observation, plain_tables(engine.spec), noise_for(engine.spec))
        for name, seconds in {"total": time.perf_counter() - started_s, **result.stages_s}.items():
            found.setdefault(name, []).append(seconds)
    return {name: sorted(values) for name, values in found.items()}


def floors(size: str, device) -> dict[str, float]:
    """Seconds per stage below which the device cannot do it."""
    import torch

    from phyai_adapters.random_policies import random_adapter
    from phyai_core.bench import longest_inputs
    from phyai_core.work import count_work, find_roofs

    meta = torch.device("meta")
    shapes = random_adapter("cosmos3", meta, size, prompt_tokens=PROMPT_TOKENS)
    inputs = {name: tensor.to(meta) for name, tensor in longest_inputs(shapes).items()}
    roofs = find_roofs(device, torch.bfloat16)
    return {name: roofs.floor_s(work) for name, work in count_work(shapes, inputs, torch.bfloat16).items()}


if __name__ == "__main__":
    main()
