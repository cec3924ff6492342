"""`phyai-ros profile`: times every kernel a policy could run on this machine, for the runtime to choose from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from phyai_core.adapter import Adapter
    from phyai_core.kernel_times import Choice, Profile


def profile(
    checkpoint: Annotated[Path | None, typer.Argument(help="Checkpoint folder; without one: random weights")] = None,
    adapter: Annotated[str, typer.Option(help="Policy adapter; by default told from the files, or pi05")] = "",
    size: Annotated[str, typer.Option(help="With random weights: full, or tiny for a try on a CPU")] = "full",
    cameras: Annotated[int, typer.Option(help="With random weights: number of cameras")] = 3,
    prompt_tokens: Annotated[int, typer.Option(help="With random weights: padded length of the prompt")] = 200,
    fp8_prefix: Annotated[bool, typer.Option("--fp8-prefix", help="With random weights: FP8 in the prefix")] = False,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Also batches of robots, doubling up to this")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cuda",
    out: Annotated[Path | None, typer.Option(help="Folder of the profile; by default where the runtime looks")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what is known too")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say of each candidate why it is taken or not")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write choices and reasons")] = None,
) -> None:
    """Time the kernels that a policy can run by, and keep the times: the runtime chooses by them from then on."""
    from phyai_core.engine import resolve_device
    from phyai_core.kernel_times import default_folder, load_profile, measure_kernels

    where, folder, console = resolve_device(device), out or default_folder(), make_console()
    known = None if again else load_profile(folder, where)
    if known is not None and (reason := known.refuse(where)):
        console.print(f"the known times are replaced: {reason}", highlight=False, soft_wrap=True)
    policy = _load(checkpoint, adapter, where, (size, cameras, prompt_tokens), fp8_prefix)
    if where.type == "cpu" and hasattr(policy, "fuses_everywhere"):
        policy.fuses_everywhere = True  # the references, to try the command: a CPU runs the plain methods
    sizes = [*(1 << power for power in range(batch.bit_length()) if 1 << power < batch), batch]
    with console.status("running the policy once") as status:
        measured, choices, left_out = measure_kernels(
            policy, where, sizes, known, lambda op, _: status.update(f"measuring {op}")
        )
    if not choices:
        raise CommandFailed(f"{policy.spec.name} has no kernels to choose from here: {left_out or 'it brings none'}")
    console.print(make_table(choices, measured))
    for choice in choices if explain else ():
        console.print(f"\n[bold]{choice.op}[/]", escape(choice.problem), highlight=False, soft_wrap=True)
        console.print(explain_choice(choice, measured))
    tell_written(console, measured.save(folder))
    if json_file is not None:
        write_json(json_file, {**host_facts(), **make_report(choices, measured)})
        tell_written(console, json_file)


def _load(
    checkpoint: Path | None, name: str, device: torch.device, sizes: tuple[str, int, int], fp8_prefix: bool
) -> Adapter:
    from phyai_adapters import load_adapter
    from phyai_adapters.detection import detect_adapter
    from phyai_adapters.random_policies import RandomLoad

    if checkpoint is None:
        return RandomLoad(*sizes, fp8_prefix=fp8_prefix)(name or "pi05", None, device)
    if fp8_prefix:
        raise ValueError("--fp8-prefix: only with random weights; a checkpoint has its phyai.json")
    return load_adapter(name or detect_adapter(checkpoint), checkpoint, device)


def make_table(choices: Sequence[Choice], measured: Profile) -> Table:
    """One line per choice: what is taken."""
    table = Table(title=f"kernels on {measured.device}", title_justify="left", show_edge=False)
    for column in ("operation", "taken", "us", "of"):
        table.add_column(column, justify="right" if column in ("us", "of") else "left", no_wrap=True)
    table.add_column("call")  # this one gives way where the terminal is narrow
    for choice in choices:
        time = _number(measured.times_us[choice.op][choice.problem].get(choice.taken))
        call = Text(choice.problem, no_wrap=True, overflow="ellipsis")
        table.add_row(choice.op, choice.taken, time, str(len(choice.reasons)), call)
    return table


def explain_choice(choice: Choice, measured: Profile) -> Table:
    """One line per candidate, in the order of preference without measurements: why it is taken or not."""
    table = Table(show_edge=False, show_header=False)
    for name, justify in (("candidate", "left"), ("us", "right"), ("why", "left")):
        table.add_column(name, justify=justify, overflow="fold", min_width=15 if name == "candidate" else None)
    times = measured.times_us[choice.op][choice.problem]
    for name, reason in choice.reasons.items():
        why = reason.removesuffix(f", {_number(times.get(name))} us measured")
        table.add_row(name, _number(times.get(name)), why, style="bold" if name == choice.taken else "")
    return table


def _number(figure: float | str | None) -> str:
    return f"{figure:.1f}" if isinstance(figure, float) else ""


def make_report(choices: Sequence[Choice], measured: Profile) -> dict[str, Any]:
    """For the JSON file: every choice with times and reasons."""
    rows = [
        {
            "op": choice.op,
            "call": choice.problem,
            "taken": choice.taken,
            "us": measured.times_us[choice.op][choice.problem],
            "reasons": choice.reasons,
        }
        for choice in choices
    ]
    return {"device": measured.device, "versions": measured.versions, "choices": rows}
