"""Parity fixtures of pi0 and pi0.5: shrunk checkpoints with random weights, and what the upstream code made of them.

The folders in golden/models are checkpoints as lerobot 0.6.1 saves them, with recorded inputs, outputs and values in
between; outputs_openpi is openpi's result from the same weights. `phyai.json` is ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from phyai_core.types import Observation

MODELS = Path(__file__).parent / "golden" / "models"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
NORMALISERS = {
    "pi0": "policy_preprocessor_step_6_normalizer_processor",
    "pi05": "policy_preprocessor_step_3_normalizer_processor",
}
UNNORMALISER = "policy_postprocessor_step_0_unnormalizer_processor"


@cache
def tensors(kind: str, name: str) -> dict[str, Tensor]:
    """Tensors of one file of a fixture."""
    return load_file(MODELS / kind / f"{name}.safetensors")


def copy_checkpoint(kind: str, folder: Path) -> Path:
    """The checkpoint part of a fixture, to be changed."""
    target = folder / kind
    target.mkdir()
    for file in MODELS.joinpath(kind).iterdir():
        if file.name.startswith(("config", "model", "policy_", "meta", "phyai")):
            shutil.copyfile(file, target / file.name)
    return target


def edit_json(file: Path, **values) -> None:
    """Set entries of a JSON object; None removes one."""
    content = json.loads(file.read_text()) if file.is_file() else {}
    content.update(values)
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def edit_tensors(file: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Rewrite a safetensors file as `edit` returns its tensors."""
    changed = edit({name: tensor.clone() for name, tensor in load_file(file).items()})
    save_file({name: tensor.contiguous() for name, tensor in changed.items()}, file)


def openpi_checkpoint(kind: str, folder: Path, asset_id: str = "arm") -> Path:
    """The same weights and statistics in openpi's layout."""
    target = folder / f"openpi_{kind}"
    (target / "assets" / asset_id).mkdir(parents=True)
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors(kind, "model").items()}
    save_file(weights, target / "model.safetensors")
    shutil.copyfile(MODELS / kind / "meta.json", target / "meta.json")
    statistics = tensors(kind, UNNORMALISER)
    names = {"state": "observation.state", "actions": "action"}
    values = {
        ours: {name: statistics[f"{theirs}.{name}"].tolist() for name in ("mean", "std", "q01", "q99")}
        for ours, theirs in names.items()
    }
    (target / "assets" / asset_id / "norm_stats.json").write_text(json.dumps({"norm_stats": values}))
    (target / "config.json").write_text(json.dumps({"action_horizon": 10, "precision": "float32"}))
    (target / "phyai.json").write_text(json.dumps({"rate_hz": 25, "tokenizer": "bytes"}))
    return target


def make_observation(seed: int, cameras, size: tuple[int, int] = (60, 80), prompt: str | None = None) -> Observation:
    """An observation of the fixtures' robot: seven joints, frames of the given size."""
    rng = np.random.default_rng(seed)
    return Observation(
        stamp_ns=0,
        images={key: rng.integers(0, 256, (*size, 3), np.uint8) for key in cameras},
        state=rng.normal(0, 1, 7).astype(np.float32),
        last_command=np.zeros(7, np.float32),
        prompt=f"task {seed}" if prompt is None else prompt,
    )
