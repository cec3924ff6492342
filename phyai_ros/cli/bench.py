"""`phyai-ros bench`: how long one chunk takes on this machine, by stage, beside the shortest time it could take."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    import torch

    from phyai_core.engine import Engine
    from phyai_core.recipe import EngineRecipe, Load

LEAST_RUNS = 200  # below that a p99 says nothing


def bench(
    adapter: Annotated[str, typer.Option(help="Policy adapter; by default told from the files, or pi05")] = "",
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
    no_fused: Annotated[bool, typer.Option("--no-fused", help="Without the launches an adapter brings")] = False,
    fp8_prefix: Annotated[bool, typer.Option("--fp8-prefix", help="With random weights: FP8 in the prefix")] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Fuse small operations with torch.compile; with --no-fused")
    ] = False,
    process: Annotated[bool, typer.Option("--process", help="Also run it in a child process")] = False,
    against_float32: Annotated[
        bool, typer.Option("--against-float32", help="With random weights: also compare results with float32")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures")] = None,
) -> None:
    """Measure one policy: fixed and varying prompt, RTC, batches; wall time, device time per stage, memory, floor."""
    began_s = time.perf_counter()
    from phyai_adapters.detection import detect_adapter
    from phyai_core.recipe import EngineRecipe

    import_s = time.perf_counter() - began_s
    if random_weights == (checkpoint is not None):
        raise ValueError("--checkpoint and --random-weights: give exactly one of them.")
    if random_weights:
        load = _random_load(size, cameras, prompt_tokens, dtype, fp8_prefix)
    else:
        load = _plain_load(dtype, against_float32, fp8_prefix)
    adapter = adapter or ("pi05" if random_weights else detect_adapter(checkpoint))
    sizes = (*(1 << power for power in range(batch.bit_length()) if 1 << power < batch), batch)
    settings = {"batch_sizes": sizes, "use_graphs": not eager, "compiled": compiled, "fused": not no_fused}
    recipe = EngineRecipe(load, adapter, checkpoint, device, threads, **settings)
    engine, start_s = _start(recipe)
    start_s = {"import": import_s, **start_s}
    report = {**host_facts(), **_describe(engine), "start_s": start_s, **_measure(engine, runs, warm_up)}
    report["floor"] = _floor(recipe, engine.device, report["dtype"]) if report["dtype"] else None
    if process:
        report["process_ms"], report["process_start_s"] = _compare_process(engine, recipe, runs)
    if against_float32:
        report["relative_l2_to_float32"] = _compare(engine, recipe, dtype="float32")
        if fp8_prefix:
            report["relative_l2_to_unquantised"] = _compare(engine, recipe)
    _show(report, console := make_console())
    if json_file is not None:
        write_json(json_file, report)
        tell_written(console, json_file)


def _random_load(size: str, cameras: int, prompt_tokens: int, dtype: str | None, fp8_prefix: bool) -> Load:
    from phyai_adapters.random_policies import RandomLoad

    names = {"bf16": "bfloat16", "fp32": "float32"}
    return RandomLoad(size, cameras, prompt_tokens, names.get(dtype, dtype), fp8_prefix)


def _plain_load(dtype: str | None, against_float32: bool, fp8_prefix: bool) -> Load:
    from phyai_adapters import load_adapter

    if dtype or against_float32 or fp8_prefix:
        options = "--dtype, --against-float32, --fp8-prefix"
        raise ValueError(f"{options}: only with --random-weights; a checkpoint has its phyai.json.")
    return load_adapter


def _start(recipe: EngineRecipe) -> tuple[Engine, dict[str, float]]:
    """An engine that has run once, and how long each part of that took."""
    from phyai_core.engine import blank_request

    times = [time.perf_counter()]
    engine = recipe.build()
    times.append(time.perf_counter())
    engine.warm_up(0)
    times.append(time.perf_counter())
    engine.infer(*blank_request(engine.spec))
    times.append(time.perf_counter())
    parts = ("load", "capture", "first inference")
    return engine, {part: end - start for part, start, end in zip(parts, times, times[1:], strict=False)}


def _describe(engine: Engine) -> dict[str, Any]:
    import torch

    from phyai_core.bench import matrix_dtype

    spec, cuda = engine.spec, engine.device.type == "cuda"
    return {
        "policy": spec.name,
        "cameras": len(spec.cameras),
        "prompt_buckets": list(engine.adapter.prompt_buckets),
        "action_horizon": spec.action_horizon,
        "num_denoise_steps": spec.num_denoise_steps,
        "device": torch.cuda.get_device_name(engine.device) if cuda else "cpu",
        "dtype": str(dtype).removeprefix("torch.") if (dtype := matrix_dtype(engine.adapter)) else None,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "graphs": sum(slot.graph is not None for slot in engine.runner.slots.values()),
        "kernel_choices": engine.adapter.dispatcher.explain().splitlines() if engine.adapter.dispatcher else [],
    }


def _measure(engine: Engine, runs: int, warm_up: int) -> dict[str, Any]:
    from phyai_core.bench import make_cases, measure_cases, memory_bytes, profile_kernels, prompts_for
    from phyai_ros.realtime import freeze_garbage

    cases = list(make_cases(engine.spec, prompts_for(engine.adapter), engine.batch_sizes))
    freeze_garbage()  # as the node does
    measure_cases(engine, cases, runs, warm_up)
    gc.unfreeze()
    profile = profile_kernels(engine)
    return {
        "runs": runs,
        "rows": {case.name: case.report() for case in cases},
        "kernels_per_chunk": profile and profile["launches"],
        "profile": profile,
        "memory_bytes": memory_bytes(engine.device),
    }


def _floor(recipe: EngineRecipe, device: torch.device, dtype: str) -> dict[str, Any]:
    """Of batch 1 with the longest prompt, counted on the meta device: nothing is computed there."""
    import torch

    from phyai_core.bench import longest_inputs
    from phyai_core.work import count_work, find_roofs

    shapes = recipe.load(recipe.adapter, recipe.checkpoint, torch.device("meta"))
    inputs = {name: tensor.to("meta") for name, tensor in longest_inputs(shapes).items()}
    kind = getattr(torch, dtype)
    work, roofs = count_work(shapes, inputs, kind), find_roofs(device, kind)
    stages = {name: {**asdict(part), "ms": roofs.floor_s(part) * 1e3} for name, part in work.items()}
    return {"roofs": asdict(roofs), "stages": stages, "ms": sum(stage["ms"] for stage in stages.values())}


def _compare_process(engine: Engine, recipe: EngineRecipe, runs: int) -> tuple[dict[str, Any], float]:
    """The same inference here and in a child process, turn by turn; and how long that took to be ready."""
    from phyai_core.bench import compare_placements
    from phyai_core.remote import RemoteEngine

    began_s = time.perf_counter()
    remote = RemoteEngine(replace(recipe, batch_sizes=(1,)))
    try:
        remote.warm_up(3)
        start_s = time.perf_counter() - began_s
        return compare_placements(engine, remote, runs), start_s
    finally:
        remote.close()


def _compare(engine: Engine, recipe: EngineRecipe, **other: str) -> float:
    """Error of one inference against the same weights without FP8, and with what else `other` changes in the load."""
    from phyai_core.bench import noise_for, random_observation, relative_error
    from phyai_core.engine import plain_tables

    load = replace(recipe.load, fp8_prefix=False, **other)
    reference = replace(recipe, load=load, batch_sizes=(1,)).build()
    request = (
        random_observation(engine.spec, "pick up the block", 0),
        plain_tables(engine.spec),
        noise_for(engine.spec),
    )
    return relative_error(engine, reference, request)


def _show(report: dict[str, Any], console: Console) -> None:
    console.print(make_table(report))
    console.print(" · ".join(f"{part} {seconds:.2f} s" for part, seconds in report["start_s"].items()))
    if "process_ms" in report:
        thread, process = (report["process_ms"][place]["p50"] for place in ("thread", "process"))
        ready = f"ready after {report['process_start_s']:.1f} s"
        console.print(f"in a child process: {process:.2f} ms, {ready}; in a thread: {thread:.2f} ms (p50)")
    for name in ("float32", "unquantised"):
        if (key := f"relative_l2_to_{name}") in report:
            console.print(f"relative L2 to {name}: {report[key]:.1e}")


def make_table(report: dict[str, Any]) -> Table:
    """One line per case, milliseconds; the floor last, where the operations of the policy can be counted."""
    kind, floor = report["dtype"] or "an exported network", report["floor"]
    title = f"{report['policy']} on {report['device']}, {kind}, {report['runs']} runs each, ms"
    table = Table(title=title, title_justify="left", show_edge=False)
    stages = list(floor["stages"]) if floor else []
    for column in ("", "p50", "p99", "max", "device p50", *stages):
        table.add_column(column, justify="right" if column else "left")
    for name, row in report["rows"].items():
        wall = [f"{row['wall_ms'][key]:.2f}" for key in ("p50", "p99", "max")]
        parts = [f"{row['stages_ms'][stage]['p50']:.2f}" if stage in row["stages_ms"] else "" for stage in stages]
        table.add_row(name, *wall, f"{row['device_ms']['p50']:.2f}", *parts)
    if floor:
        floors = [f"{stage['ms']:.3f}" for stage in floor["stages"].values()]
        table.add_row(f"floor ({floor['roofs']['source']})", f"{floor['ms']:.3f}", "", "", "", *floors)
    return table
