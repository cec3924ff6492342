"""Named arrays that cross between two processes in a ring of equal blocks of shared memory.

The memory has no name and no owner: it is gone with the last process that holds its file descriptor, however that
process ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phyai_core.packing import Field, Packing, describe


@dataclass(frozen=True)
class Layout:
    """What every block of a ring holds."""

    fields: Mapping[str, Field]


class SharedRing:
    """`slots` blocks; give `fd` in the process that opens the ring of another."""

    def __init__(self, slots: int, fd: int | None = None) -> None:
        self._slots, self._capacity = slots, 0
        self._made = fd is None
        self.fd = os.memfd_create("phyai_ring") if fd is None else fd
        self._packing = Packing({})
        self._views: dict[int, dict[str, NDArray]] = {}  # per block, of the present layout

    def lay_out(self, layout: Layout) -> None:
        """Blocks hold these arrays from here on. Views of the layout before keep what they show."""
        self._packing, self._views = Packing(layout.fields), {}
        if self._packing.size <= self._capacity:
            return
        self._capacity = self._packing.size
        if self._made:
            os.ftruncate(self.fd, self._slots * self._capacity)
        self._memory = mmap.mmap(self.fd, self._slots * self._capacity)

    def views(self, seq: int) -> dict[str, NDArray]:
        """The arrays of block `seq`, counted round the ring; writable, and shared with the other process."""
        index = seq % self._slots
        if index not in self._views:
            block = np.frombuffer(self._memory, np.uint8, self._capacity, index * self._capacity)
            self._views[index] = self._packing.arrays(block)
        return self._views[index]

    def write(self, seq: int, arrays: Mapping[str, NDArray]) -> Layout | None:
        """Copy the arrays into block `seq`. Returns the layout when it had to change: the reader needs it first."""
        layout = None if self._fits(arrays) else Layout({name: describe(array) for name, array in arrays.items()})
        if layout is not None:
            self.lay_out(layout)
        views = self.views(seq)
        for name, array in arrays.items():
            views[name][...] = array
        return layout

    def close(self) -> None:
        """Let go of the memory; views that are still held keep their part of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _fits(self, arrays: Mapping[str, NDArray]) -> bool:
        fields = self._packing.fields
        return arrays.keys() == fields.keys() and all(
            array.shape == fields[name].shape and array.dtype == fields[name].dtype for name, array in arrays.items()
        )
