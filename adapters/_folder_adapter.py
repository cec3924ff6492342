"""Adapters of checkpoint folders: what is checked before anything is read."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import torch

from phyai_adapters._deployment import Options, read_options, refuse_options
from phyai_core.adapter import Adapter
from phyai_core.weights import Progress


class FolderAdapter(Adapter):
    """Beside what an Adapter has: `kind`, its name in messages, and the options that mean something to it."""

    kind: ClassVar[str]
    allowed_options: ClassVar[tuple[str, ...]]

    @classmethod
    def load(
        cls,
        checkpoint: Path | None,
        device: torch.device,
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> FolderAdapter:
        """Read a checkpoint folder; `options` replaces its phyai.json.

        Raises ValueError naming the file, entry or option at fault.
        """
        if checkpoint is None or not Path(checkpoint).is_dir():
            given = "no weights are shipped" if checkpoint is None else f"{checkpoint} is not a folder"
            raise ValueError(f"checkpoint: {given}; {cls.kind} needs the folder of a checkpoint")
        folder = Path(checkpoint)
        options = read_options(folder) if options is None else options
        refuse_options(options, cls.kind, cls.allowed_options)
        return cls.read(folder, device, options, progress)

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, device: torch.device, options: Options, progress: Progress | None) -> FolderAdapter:
        """As `load`, of a folder that exists and options that fit."""
