"""Whole messages between two processes of one user: one system call each way, the kernel keeps them apart."""

from __future__ import annotations

import pickle
import socket
from typing import Any

LARGEST = 1 << 17  # bytes of one message; arrays cross by shared memory


class MessageSocket:
    """One end. Closing an end ends the other's `receive` with EOFError."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[MessageSocket, MessageSocket]:
        """Two ends that hear each other."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def open(cls, fd: int) -> MessageSocket:
        """The end behind an inherited file descriptor."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        """Raises OSError when nobody listens any more."""
        self._end.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Wait for the next message. Raises EOFError or OSError when the other end is gone."""
        data = self._end.recv(LARGEST)
        if not data:
            raise EOFError
        return pickle.loads(data)

    def close(self) -> None:
        self._end.close()
