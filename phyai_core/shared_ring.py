"""A ring of equal blocks of memory that two processes share through a file descriptor.

The memory has no name and no owner: it is gone with the last process that holds it, however that process ends.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray


class SharedRing:
    """`slots` blocks; give `fd` in the process that opens the ring of another."""

    def __init__(self, slots: int, capacity: int = 0, fd: int | None = None) -> None:
        self.slots, self.capacity = slots, 0
        self._made = fd is None
        self.fd = os.memfd_create("phyai_ring") if fd is None else fd
        self.fit(capacity)

    def fit(self, capacity: int) -> None:
        """Make blocks hold `capacity` bytes at least. Views of smaller blocks stay readable, but are not shared on."""
        if capacity <= self.capacity:
            return
        if self._made:
            os.ftruncate(self.fd, self.slots * capacity)
        self._memory = mmap.mmap(self.fd, self.slots * capacity)
        self.capacity = capacity

    def block(self, index: int) -> NDArray[np.uint8]:
        """Block `index`, counted round the ring."""
        return np.frombuffer(self._memory, np.uint8, self.capacity, (index % self.slots) * self.capacity)

    def close(self) -> None:
        """Let go of the memory; views that are still held keep their part of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
