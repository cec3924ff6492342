"""Fusing of small operations by torch.compile, block by block: a repeated block is compiled once for all its copies.

It takes a minute or more at the first start and little at later ones (torch keeps what it compiled on disk), needs a C
compiler, and only pays on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from phyai_core.adapter import Adapter

VARIANTS = 256  # kinds of blocks x static shapes; the default of 8 would quietly leave the rest uncompiled


def compile_blocks(adapter: Adapter) -> int:
    """Compile every member of every list of modules of the adapter, in place. Returns how many there are.

    Shapes are taken as static. Compiling happens in the first run of each shape, inside `allow_variants`.
    """
    blocks = list(_blocks(adapter))
    for block in blocks:
        block.compile(fullgraph=True, dynamic=False)
    return len(blocks)


def _blocks(adapter: Adapter) -> Iterator[nn.Module]:
    networks = [value for value in vars(adapter).values() if isinstance(value, nn.Module)]
    seen: set[int] = set()
    for module in (module for network in networks for module in network.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                if id(block) not in seen:
                    seen.add(id(block))
                    yield block


@contextmanager
def allow_variants() -> Iterator[None]:
    """Room for one compiled variant per kind of block and shape."""
    with torch._dynamo.config.patch(recompile_limit=VARIANTS, accumulated_recompile_limit=4 * VARIANTS):
        yield
