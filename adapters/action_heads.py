"""Action heads behind a backbone whose own head is not public: what one has to be, and how a user names one.

`action_head` in phyai.json is "<file>.py:<class>", the file beside the checkpoint, or "<module>:<class>". Such a class
is code that runs; read it first, as with any file that comes with weights.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class ActionHead(nn.Module, ABC):
    """Features of images and text, and the state -> a chunk.

    Either `sample` gives the chunk at once (num_denoise_steps 0), or `velocity` leads to it, from flow time 0, noise,
    to 1, action. Whatever they compute has fixed shapes and no host synchronisation, so that a CUDA graph can hold it.
    """

    action_horizon: int  # H
    latent_dim: int  # A', actions and noise are that wide
    state_dim: int  # S', the state is padded to it with zeros
    embodiments: int = 1  # kinds of robots that it knows
    num_denoise_steps: int = 0  # N
    freezes: bool = False  # `sample` can be led onto rows that are given

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, width: int, device: torch.device, dtype: torch.dtype | None) -> ActionHead:
        """Read the head in the checkpoint `folder` for features of `width`; `dtype` None: its own choice.

        On the meta device only shapes count. Raises ValueError naming the file or entry at fault.
        """

    @abstractmethod
    def prepare(self, features: Tensor, mask: Tensor, state: Tensor, embodiment: Tensor) -> Any:
        """features [B, T, D], mask bool [B, T] (True: real), state [B, S'], embodiment int64 [B]; per observation."""

    def tabulate(self) -> None:
        """Keep what depends on the weights alone; called once, when they are set."""

    def sample(self, prepared: Any, noise: Tensor, given: Tensor | None = None, frozen: Tensor | None = None) -> Tensor:
        """The chunk [B, H, A'] from standard normal noise [B, H, A'], for heads without denoise steps.

        Heads that freeze keep it to `given` [B, H, A'] where `frozen` bool [B, H, A'] is true.
        """
        raise NotImplementedError(f"{type(self).__name__} has no denoise steps, and not how to sample without")

    def velocity(self, prepared: Any, latents: Tensor, rows: Tensor) -> Tensor:
        """dx/dt [B, H, A'] at latents [B, H, A'] and flow time rows / N, rows int64 [B]."""
        raise NotImplementedError(f"{type(self).__name__} has denoise steps, but not how to compute one")


def find_head(choice: str, folder: Path) -> type[ActionHead]:
    """The class that `choice` names. Raises ValueError with what is wrong and what is allowed."""
    source, _, name = choice.rpartition(":")
    if not source:
        raise ValueError(f'action_head: {choice!r} names no class; allowed: "<file>.py:<class>" or "<module>:<class>"')
    module = _run_file(folder / source) if source.endswith(".py") else _import(source)
    found = getattr(module, name, None)
    if not (inspect.isclass(found) and issubclass(found, ActionHead)):
        raise ValueError(f"action_head: {source} has no class {name} after phyai_adapters.action_heads.ActionHead")
    if missing := sorted(found.__abstractmethods__):
        raise ValueError(f"action_head: {name} lacks {', '.join(missing)}; see phyai_adapters.action_heads.ActionHead")
    return found


def _run_file(file: Path) -> Any:
    if not file.is_file():
        raise ValueError(f"action_head: {file} does not exist; the file is looked for beside the checkpoint")
    module = ModuleType(f"action_head_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    exec(compile(file.read_text(), file, "exec"), vars(module))
    return module


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"action_head: the module {name} cannot be imported ({error}); install it") from None
