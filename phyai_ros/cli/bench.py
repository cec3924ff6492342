"""`phyai-ros bench`: how long one chunk takes on this machine, by stage, beside the shortest time it could take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    import torch

    from phyai_core.adapter import Adapter
    from phyai_core.engine import Engine

LEAST_RUNS = 200  # below that a p99 says nothing


def bench(
    adapter: Annotated[str, typer.Option(help="Policy adapter")] = "pi05",
    checkpoint: Annotated[Path | None, typer.Option(help="Checkpoint folder")] = None,
    random_weights: Annotated[bool, typer.Option("--random-weights", help="No checkpoint: random weights")] = False,
    size: Annotated[str, typer.Option(help="With random weights: full, or tiny for a try on a CPU")] = "full",
    cameras: Annotated[int, typer.Option(help="With random weights: number of cameras")] = 3,
    prompt_tokens: Annotated[int, typer.Option(help="With random weights: padded length of the prompt")] = 200,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Also measure batches of robots, doubling up to this")] = 1,
    dtype: Annotated[str | None, typer.Option(help="float32, or bf16; by default bf16 on CUDA")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    runs: Annotated[int, typer.Option(min=LEAST_RUNS, help="Measured inferences per row")] = LEAST_RUNS,
    warm_up: Annotated[int, typer.Option(min=1, help="Inferences before that, per row")] = 20,
    eager: Annotated[bool, typer.Option("--eager", help="Without CUDA graphs")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
) -> None:
    """Measure one policy: fixed and varying prompt, RTC, batches; wall time, device time per stage, memory, floor."""
    import torch

    from phyai_core.engine import Engine, resolve_device

    torch.set_num_threads(threads)
    where = resolve_device(device)
    started = time.perf_counter()
    make = _policy_maker(adapter, checkpoint, random_weights, size, cameras, prompt_tokens, dtype)
    policy = make(where)
    loaded = time.perf_counter()
    sizes = [1 << power for power in range(batch.bit_length()) if 1 << power < batch] + [batch]
    engine = Engine(policy, where, sizes, use_graphs=not eager)
    engine.warm_up(1)
    start = {"load": loaded - started, "capture and warm up": time.perf_counter() - loaded}
    report = {**host_facts(), **_describe(engine, dtype), "start_s": start, **_measure(engine, runs, warm_up)}
    report["floor"] = _floor(make(torch.device("meta")), where, report["dtype"])
    console = Console()
    console.print(make_table(report))
    if json_file is not None:
        write_json(json_file, report)


def _policy_maker(name, checkpoint, random_weights, size, cameras, prompt_tokens, dtype) -> Callable[..., Adapter]:
    """A function from device to policy. Raises ValueError for options that contradict each other."""
    if random_weights == (checkpoint is not None):
        raise ValueError("--checkpoint and --random-weights: give exactly one of them.")
    if not random_weights:
        from phyai_adapters import load_adapter

        return partial(load_adapter, name, checkpoint)
    from phyai_adapters.random_policies import random_adapter

    return lambda device: random_adapter(name, device, size, cameras, prompt_tokens, _dtype_name(dtype))


def _dtype_name(text: str | None) -> str | None:
    names = {"bf16": "bfloat16", "fp32": "float32"}
    return text and names.get(text, text)


def _describe(engine: Engine, dtype: str | None) -> dict[str, Any]:
    import torch

    spec, cuda = engine.spec, engine.device.type == "cuda"
    return {
        "policy": spec.name,
        "cameras": len(spec.cameras),
        "prompt_buckets": list(engine.adapter.prompt_buckets),
        "action_horizon": spec.action_horizon,
        "num_denoise_steps": spec.num_denoise_steps,
        "device": torch.cuda.get_device_name(engine.device) if cuda else "cpu",
        "dtype": _dtype_name(dtype) or ("bfloat16" if cuda else "float32"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "graphs": engine.runner.captures,
    }


def _measure(engine: Engine, runs: int, warm_up: int) -> dict[str, Any]:
    from phyai_core.bench import count_kernels, make_cases, measure_cases, memory_bytes, prompts_for

    cases = list(make_cases(engine.spec, prompts_for(engine.adapter), engine.batch_sizes))
    measure_cases(engine, cases, runs, warm_up)
    return {
        "runs": runs,
        "rows": {case.name: case.report() for case in cases},
        "kernels_per_chunk": count_kernels(engine),
        "memory_bytes": memory_bytes(engine.device),
    }


def _floor(shapes: Adapter, device: torch.device, dtype: str) -> dict[str, Any]:
    """Of batch 1 with the longest prompt. `shapes` is the policy on the meta device: nothing is computed there."""
    import torch

    from phyai_core.bench import longest_inputs
    from phyai_core.work import count_work, find_roofs

    inputs = {name: tensor.to("meta") for name, tensor in longest_inputs(shapes).items()}
    work, roofs = count_work(shapes, inputs), find_roofs(device, getattr(torch, dtype))
    stages = {name: {**asdict(part), "ms": roofs.floor_s(part) * 1e3} for name, part in work.items()}
    return {"roofs": asdict(roofs), "stages": stages, "ms": sum(stage["ms"] for stage in stages.values())}


def make_table(report: dict[str, Any]) -> Table:
    """One line per case, milliseconds; the floor last."""
    title = f"{report['policy']} on {report['device']}, {report['dtype']}, {report['runs']} runs each, ms"
    table = Table(title=title, title_justify="left", show_edge=False)
    stages = list(report["floor"]["stages"])
    for column in ("", "p50", "p99", "max", "device p50", *stages):
        table.add_column(column, justify="right" if column else "left")
    for name, row in report["rows"].items():
        wall = [f"{row['wall_ms'][key]:.2f}" for key in ("p50", "p99", "max")]
        parts = [f"{row['stages_ms'][stage]['p50']:.2f}" if stage in row["stages_ms"] else "" for stage in stages]
        table.add_row(name, *wall, f"{row['device_ms']['p50']:.2f}", *parts)
    floors = [f"{stage['ms']:.3f}" for stage in report["floor"]["stages"].values()]
    source = report["floor"]["roofs"]["source"]
    table.add_row(f"floor ({source})", f"{report['floor']['ms']:.3f}", "", "", "", *floors)
    return table
