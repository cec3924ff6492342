"""`phyai-ros inspect`: what a checkpoint wants and gives, and a parameter file to start from. Reads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.summary import write_json

if TYPE_CHECKING:
    from phyai_adapters.description import Description
    from phyai_core.types import Feature, PolicySpec


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder")],
    adapter: Annotated[str, typer.Option(help="Policy adapter; by default told from the files")] = "",
    yaml_file: Annotated[Path | None, typer.Option("--yaml", help="Write the parameter file")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all of it")] = None,
) -> None:
    """Show cameras, state, prompt, actions, normalisation, RTC modes and size of a checkpoint."""
    from phyai_adapters.description import describe_checkpoint
    from phyai_adapters.detection import detect_adapter

    found = describe_checkpoint(checkpoint, adapter or detect_adapter(checkpoint))
    console = make_console()
    for line in summary_lines(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(make_table("state", found.spec.state, found.state_range))
    console.print(make_table("action", found.spec.action, found.action_range))
    text = parameter_file(found, checkpoint)
    console.print(f"\n# parameter file to start from\n{text}", highlight=False, markup=False, soft_wrap=True)
    if yaml_file is not None:
        yaml_file.parent.mkdir(parents=True, exist_ok=True)
        yaml_file.write_text(text)
        tell_written(console, yaml_file)
    if json_file is not None:
        write_json(json_file, {"checkpoint": str(checkpoint), **make_report(found)})
        tell_written(console, json_file)


def summary_lines(found: Description) -> Iterator[str]:
    """The facts that are not per joint."""
    spec = found.spec
    rate = "unknown rate" if _rate_missing(found) else f"{1.0 / spec.dt_s:g} Hz"
    yield f"adapter: {found.adapter}, {found.layout} layout"
    parameters = f"{found.parameters / 1e6:.1f} million parameters, " if found.parameters else ""  # 0: not told
    yield f"size: {parameters}{found.file_bytes / 1e6:.1f} MB on disk"
    if found.quantization:
        yield f"quantised: {found.quantization}"
    for camera in spec.cameras:
        yield f"camera: {camera.key}, trained on {camera.height} x {camera.width} pixels"
    yield f"prompt: up to {found.prompt_tokens} tokens" if found.prompt_tokens else "prompt: none"
    steps = f"{spec.num_denoise_steps} denoise steps" if spec.num_denoise_steps else "predicted at once"
    actions = "1 action" if spec.action_horizon == 1 else f"{spec.action_horizon} actions"
    yield f"chunk: {actions} at {rate}, {steps}"
    trained = f"; trained for delays up to {spec.rtc_max_delay} ticks" if spec.rtc_max_delay else ""
    yield f"RTC: {', '.join(spec.rtc_modes)}{trained}"
    for sentence in found.to_do:
        yield f"to do: {sentence}"


def make_table(title: str, features: Sequence[Feature], ranges: Sequence[str]) -> Table:
    """One line per value of a vector, in its order."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in ("", "name", "kind", "unit", "mode", "model units"):
        table.add_column(column, justify="left" if column else "right")
    for index, feature in enumerate(features):
        units = ranges[index] if index < len(ranges) else "unchanged" if not ranges else ""
        table.add_row(str(index), feature.name, feature.kind, feature.unit, feature.mode, units)
    return table


def parameter_file(found: Description, checkpoint: Path) -> str:
    """Parameters of the policy node for this checkpoint; what depends on the robot is marked."""
    spec = found.spec
    names = ", ".join(f'"{feature.name}"' for feature in spec.action)
    lines = [
        "/**:",
        "  ros__parameters:",
        "    inference:",
        f'      adapter: "{found.adapter}"',
        f'      checkpoint: "{checkpoint.resolve()}"',
        f'      device: "{"cpu" if found.parameters < 1e8 else "cuda"}"',
        "    rtc:",
        f'      mode: "{_recommended_mode(spec)}"',
        f"      execution_horizon: {max(1, spec.action_horizon // 2)}",
    ]
    if spec.cameras:
        lines += ["    cameras:", f"      keys: [{', '.join(repr(camera.key) for camera in spec.cameras)}]"]
    for camera in spec.cameras:
        lines += [f"      {camera.key}:", f'        topic: "camera/{camera.key}/image_raw"  # your camera']
    lines += ["    joints:", f"      names: [{names}]  # your joints, in this order"]
    if found.prompt_tokens:
        lines.append('    prompt: ""  # the task in words')
    return "\n".join(lines) + "\n"


def make_report(found: Description) -> dict[str, Any]:
    """For the JSON file. The rate is null where nobody has said it."""
    values = asdict(found)
    values["spec"]["rate_hz"] = None if _rate_missing(found) else 1.0 / found.spec.dt_s
    return values


def _rate_missing(found: Description) -> bool:
    return any(sentence.startswith("rate_hz:") for sentence in found.to_do)


def _recommended_mode(spec: PolicySpec) -> str:
    if spec.action_horizon == 1:
        return "instant"
    return next((mode for mode in ("trained", "identity", "hard") if mode in spec.rtc_modes), "none")
