"""Named arrays in one block of bytes, so that all of them cross to another device or process in one copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64  # bytes; a cache line, and enough for every vector load


class Field(NamedTuple):
    """Shape and type of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Packing:
    """Where each array lies in the block. `size` is the bytes of the block."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self._offsets: dict[str, int] = {}
        self.size = 0
        for name, field in self.fields.items():
            self._offsets[name] = self.size
            self.size += -(-field.bytes // ALIGNMENT) * ALIGNMENT

    def arrays(self, block: NDArray[np.uint8]) -> dict[str, NDArray]:
        """Views into a block of `size` bytes or more."""
        return {name: part.view(field.dtype).reshape(field.shape) for name, field, part in self._parts(block)}

    def start(self, name: str) -> int:
        """Where the array `name` begins, in bytes."""
        return self._offsets[name]

    def tensors(self, block: Tensor) -> dict[str, Tensor]:
        """The same views into a uint8 tensor, on any device."""
        return {name: part.view(torch_dtype(field)).view(field.shape) for name, field, part in self._parts(block)}

    def _parts(self, block):
        for name, field in self.fields.items():
            start = self._offsets[name]
            yield name, field, block[start : start + field.bytes]


def describe(array: NDArray | Tensor) -> Field:
    """The field that holds this array."""
    array = array.numpy() if isinstance(array, Tensor) else np.asarray(array)
    return Field(array.shape, array.dtype)


def torch_dtype(field: Field) -> torch.dtype:
    """The type of a tensor over this field."""
    return torch.from_numpy(np.empty(0, field.dtype)).dtype


class Staging:
    """Inputs of one static shape: written row by row on the host, moved to the device in one copy or two.

    `host` are numpy views of pinned memory, `device` tensors of the same names. On a CPU both are the same memory.
    """

    def __init__(self, fields: Mapping[str, Field], device: torch.device, early: Callable[[str], bool]) -> None:
        """`early(name)`: this array belongs to the part that can be moved before the rest."""
        ordered = sorted(fields.items(), key=lambda field: not early(field[0]))
        packing = Packing(dict(ordered))
        starts = [packing.start(name) for name in packing.fields if not early(name)]
        self._early_bytes = min(starts, default=packing.size)
        pinned = device.type == "cuda"
        self._host_block = torch.zeros(packing.size, dtype=torch.uint8, pin_memory=pinned)
        self._device_block = torch.zeros(packing.size, dtype=torch.uint8, device=device) if pinned else self._host_block
        self.host = packing.arrays(self._host_block.numpy())
        self.device = packing.tensors(self._device_block)

    def upload(self) -> None:
        """Start the copy on the current stream; a graph can hold it.

        `host` may be written again once the stream has passed it.
        """
        self._copy(self._host_block, self._device_block)

    def upload_early(self) -> None:
        """Only the part that can be moved before the rest."""
        self._copy(self._host_block[: self._early_bytes], self._device_block[: self._early_bytes])

    def upload_rest(self) -> None:
        """The other part."""
        self._copy(self._host_block[self._early_bytes :], self._device_block[self._early_bytes :])

    def _copy(self, here: Tensor, there: Tensor) -> None:
        if self._device_block is not self._host_block:
            there.copy_(here, non_blocking=True)
