"""How to make an engine: plain values that travel to another process, where the engine is then built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from phyai_core.adapter import Adapter
from phyai_core.engine import Engine, resolve_device
from phyai_kernels.dispatch import open_dispatcher

Load = Callable[[str, "Path | None", torch.device], Adapter]


@dataclass(frozen=True)
class EngineRecipe:
    """`load(adapter, checkpoint, device)` is importable by name; `num_denoise_steps` 0: as the policy was trained."""

    load: Load
    adapter: str
    checkpoint: Path | None = None
    device: str = "cpu"
    threads: int = 1  # CPU threads of the process
    num_denoise_steps: int = 0
    batch_sizes: tuple[int, ...] = (1,)
    use_graphs: bool = True
    guidance: str | None = None  # for the gradient modes of RTC, see Engine
    compiled: bool = False  # fuse small operations, see Engine
    fused: bool = True  # launches that the adapter brings, see Engine
    kernel_profile: Path | None = None  # folder of measured kernel times; None: the user's cache folder

    def build(self) -> Engine:
        """Load the policy in this process. Raises ValueError with what is wrong and how to mend it."""
        torch.set_num_threads(self.threads)
        device = resolve_device(self.device)
        adapter = self.load(self.adapter, self.checkpoint, device)
        if self.kernel_profile is not None and not self.kernel_profile.is_dir():
            raise ValueError(
                f"inference.kernel_profile is {str(self.kernel_profile)!r}, which is no folder; measure a profile "
                "there with phyai-ros profile --out, or leave it empty."
            )
        adapter.dispatcher = open_dispatcher(device, self.kernel_profile)
        if self.num_denoise_steps:
            adapter.set_denoise_steps(self.num_denoise_steps)
        settings = (self.batch_sizes, self.use_graphs, self.guidance, self.compiled, self.fused)
        return Engine(adapter, device, *settings)
