"""`phyai-ros train --bag`: a small policy from the demonstrations of a bag, to be judged with `phyai-ros replay`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phyai_ros.cli.summary import write_json
from phyai_ros.parameters import build_settings
from phyai_ros.replay.figures import plain
from phyai_ros.replay.params_file import read_params_file
from phyai_ros.replay.train_bag import HELD_OUT_FILE, BagTraining, train_on_bag


def train_on(
    bag: Path, params: Path | None, out: Path, held_out: int, steps: int | None, seed: int, json_file: Path | None
) -> None:
    """Train, and say what to do next. Raises ValueError for what the user can mend."""
    if params is None:
        raise ValueError("--bag needs --params: the parameter file says which topics are the camera and the joints.")
    config = BagTraining(held_out=held_out, seed=seed)
    config = config if steps is None else replace(config, steps=steps)
    columns = (TextColumn("fit"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    console = Console()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(
            "fit", total=config.steps + config.folds * min(config.steps, config.fold_steps), note=""
        )

        def show(step: int, loss: float) -> None:
            progress.update(bar, advance=1, note=f"loss {loss:.3f}")

        made = train_on_bag(bag, build_settings(read_params_file(params)), config, out, show)
    episodes = f"{made['episodes']} episodes ({made['samples']} moments), {made['held_out_episodes']} kept out"
    trust = ", ".join(f"{name} {share:.2f}" for name, share in made["trust"].items())
    lines = [f"learned from {episodes}", f"trust in the prediction of each joint: {trust}"]
    if math.isfinite(ratio := made["cross_validated_ratio"]):
        lines.append(f"cross-validated error / error of holding still: {ratio:.2f}")
    lines.append(f"checkpoint: {out}")
    if made["held_out_episodes"]:
        lines.append(f"judge it: phyai-ros replay {out / HELD_OUT_FILE} --params {params} --checkpoint {out}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, plain(made))
