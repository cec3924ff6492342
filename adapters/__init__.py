"""phyai_adapters: one file per policy model. Names are resolved here and nowhere else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from phyai_core.adapter import Adapter

ADAPTERS = {
    "act": "phyai_adapters.act:Act",
    "cosmos3": "phyai_adapters.cosmos3:Cosmos3",
    "diffusion": "phyai_adapters.diffusion:Diffusion",
    "flow_tiny": "phyai_adapters.flow_tiny:FlowTiny",
    "flow_tiny_rtc": "phyai_adapters.flow_tiny:FlowTinyRtc",
    "flow_tiny_relative": "phyai_adapters.flow_tiny_relative:FlowTinyRelative",
    "groot": "phyai_adapters.groot:Groot",
    "minicpm": "phyai_adapters.minicpm:MiniCpm",
    "policy_file": "phyai_adapters.policy_file:PolicyFile",
    "pi0": "phyai_adapters.pi0:Pi0",
    "pi05": "phyai_adapters.pi05:Pi05",
    "smolvla": "phyai_adapters.smolvla:SmolVla",
}


def load_adapter(name: str, checkpoint: Path | None, device: torch.device) -> Adapter:
    """Load the adapter `name`. Raises ValueError with the allowed names, or naming the checkpoint file at fault."""
    if name not in ADAPTERS:
        raise ValueError(f"adapter: {name!r} is unknown; allowed: {', '.join(sorted(ADAPTERS))}")
    module, _, attribute = ADAPTERS[name].partition(":")
    return getattr(import_module(module), attribute).load(checkpoint, device)
