"""Which adapter a checkpoint folder is for, told from its files without reading weights."""

from __future__ import annotations

from pathlib import Path

from phyai_adapters import ADAPTERS
from phyai_adapters._contract import FILE as CONTRACT
from phyai_adapters._deployment import read_json
from phyai_adapters._foreign import explain_file, explain_folder
from phyai_core.weights import Checkpoint

ADAPTIVE_NORM = "gemma_expert.model.norm.dense.weight"  # pi0.5 has it where pi0 has a plain norm
MODEL_TYPES = {"Gr00tN1d7": "groot", "minicpmv4_6": "minicpm"}
TRANSFORMERS = {"Cosmos3OmniTransformer": "cosmos3"}  # of diffusers, in a folder of their own
STACK = "paligemma_with_expert."


def detect_adapter(folder: Path) -> str:
    """The name of the adapter. Raises ValueError saying what else it is and what to do, or what was looked for."""
    if (folder / CONTRACT).is_file() or folder.suffix in (".yaml", ".yml"):
        return "policy_file"
    if not folder.is_dir():
        what = explain_file(folder) if folder.is_file() else None
        raise ValueError(f"checkpoint: {folder} is {what or 'not a folder; give the folder that holds the weights'}")
    if (folder / "flow_tiny.json").is_file():
        return "flow_tiny"
    named = _named_type(folder) or _openpi_type(folder)
    if named in ADAPTERS:
        return named
    if what := explain_folder(folder, named):
        raise ValueError(f"checkpoint: {folder} is {what}")
    found = f"is of the type {named!r}" if named else "is of no known kind"
    raise ValueError(
        f"checkpoint: {folder} {found}; known are {', '.join(sorted(ADAPTERS))}. Others run as exported networks: "
        f"write {CONTRACT} beside an ONNX or TorchScript file (docs/models.md)"
    )


def _named_type(folder: Path) -> str | None:
    """Of lerobot's config.json, or of another one that names its kind of model."""
    config, transformer = (
        read_json(file) if file.is_file() else {}
        for file in (folder / "config.json", folder / "transformer" / "config.json")
    )
    if kind := TRANSFORMERS.get(transformer.get("_class_name")):
        return kind
    named = config.get("type") or config.get("model_type") or config.get("_class_name")
    return MODEL_TYPES.get(named, named)


def _openpi_type(folder: Path) -> str | None:
    """By the names of the weights."""
    if not list(folder.glob("model.safetensors*")):
        return None
    keys = Checkpoint(folder).shapes
    if not any(STACK in key for key in keys):
        return None
    return "pi05" if any(key.endswith(ADAPTIVE_NORM) for key in keys) else "pi0"
