"""Which adapter a checkpoint folder is for, told from its files without reading weights."""

from __future__ import annotations

import json
from pathlib import Path

from phyai_adapters import ADAPTERS
from phyai_adapters._contract import FILE as CONTRACT
from phyai_core.weights import Checkpoint

ADAPTIVE_NORM = "gemma_expert.model.norm.dense.weight"  # pi0.5 has it where pi0 has a plain norm
BACKBONE = "minicpmv4_6"
MODEL_TYPES = {"Gr00tN1d7": "groot"}
STACK = "paligemma_with_expert."


def detect_adapter(folder: Path) -> str:
    """The name of the adapter. Raises ValueError saying what was looked for when nothing fits."""
    if (folder / CONTRACT).is_file() or folder.suffix in (".yaml", ".yml"):
        return "policy_file"
    if not folder.is_dir():
        raise ValueError(f"checkpoint: {folder} is not a folder; give the folder that holds the weights")
    if (folder / "flow_tiny.json").is_file():
        return "flow_tiny"
    named = _lerobot_type(folder) or _openpi_type(folder)
    if named in ADAPTERS:
        return named
    if named == BACKBONE:
        raise ValueError(
            f"checkpoint: {folder} is a MiniCPM-V 4.6 backbone. The action head of MiniCPM-Robot has no public source, "
            "so there is no adapter for it; phyai_adapters.minicpm.MiniCpmBackbone gives the features a head needs"
        )
    if (folder / "transformer").is_dir() and (folder / "vae").is_dir():
        raise ValueError(
            f"checkpoint: {folder} looks like Cosmos3. Its transformer, sampler and frame encoder are here "
            "(phyai_adapters.cosmos3), but no adapter: its prompt and camera layout could not be verified"
        )
    found = f"is of the type {named!r}" if named else "is of no known kind"
    raise ValueError(f"checkpoint: {folder} {found}; known are {', '.join(sorted(ADAPTERS))}")


def _lerobot_type(folder: Path) -> str | None:
    """Of lerobot's config.json, or of another one that names its kind of model."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) if file.is_file() else {}
    return config.get("type") or MODEL_TYPES.get(config.get("model_type"), config.get("model_type"))


def _openpi_type(folder: Path) -> str | None:
    """By the names of the weights."""
    if not list(folder.glob("model.safetensors*")):
        return None
    keys = Checkpoint(folder).shapes
    if not any(STACK in key for key in keys):
        return None
    return "pi05" if any(key.endswith(ADAPTIVE_NORM) for key in keys) else "pi0"
