"""A child process at the other end of a pipe, with deadlines: it answers in time, or it is lost and killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from phyai_core.message_socket import MessageSocket
from phyai_core.packing import Field
from phyai_core.shared_ring import Layout, SharedRing

POLL_MS = 50
SLEPT_SHARE, SPUN_UNTIL = 0.75, 1.25  # of the time an answer is expected to take
LOOKED_OUT_S = 0.05  # beside longer inferences it does not count how late the waiting thread wakes up
HEARTBEAT_S = 0.05
END_TIMEOUT_S = 2.0
HEARTBEAT = Layout({"beat_ns": Field((1,), np.dtype(np.int64))})  # the steady time at which the child was last alive


class ChildLost(RuntimeError):
    """The child process died or hung; the text says how it was noticed."""


class ChildProcess:
    """Runs `python -m module`, whose arguments are file descriptors: its end of the pipe, its heartbeat, `shared`."""

    def __init__(self, module: str, shared: Sequence[int], beat_within_s: float) -> None:
        self.loss = ""  # how the child was lost; empty while it is there
        self._beat_within_s = beat_within_s
        self._pipe, theirs = MessageSocket.pair()
        self._readable = select.poll()
        self._readable.register(self._pipe, select.POLLIN)
        self._heartbeat = SharedRing(1)
        self._heartbeat.lay_out(HEARTBEAT)
        inherited = (theirs.fileno(), self._heartbeat.fd, *shared)
        # Not by multiprocessing, which would import the main program of the node into the child.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *(str(fd) for fd in inherited)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            pass_fds=inherited,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It runs and has not been given up. Does not see a child that hangs; waiting for an answer does."""
        return not self.loss and self._process.poll() is None

    def send(self, message: Any) -> None:
        """Raises ChildLost when nobody is there."""
        self._refuse_if_lost()
        try:
            self._pipe.send(message)
        except OSError:
            self._lose(f"the policy process {self._ending()}")

    def receive(self, within_s: float, watch_heartbeat: bool, expected_s: float = 0.0) -> Any:
        """The next message. Raises ChildLost when the child ends, falls silent or lets the deadline pass.

        Around the time a quick answer is expected it looks again and again: who sleeps wakes up late.
        """
        self._refuse_if_lost()
        deadline = time.monotonic() + within_s
        self._look_out(expected_s)
        try:
            while not self._readable.poll(POLL_MS):
                silence_s = self._silence_s()
                if watch_heartbeat and silence_s > self._beat_within_s:
                    self._lose(f"the policy process has shown no sign of life for {silence_s:.1f} s")
                if time.monotonic() > deadline:
                    self._lose(f"the policy process has not answered within {within_s:g} s")
            return self._pipe.receive()
        except (EOFError, OSError):
            return self._lose(f"the policy process {self._ending()}")

    def _look_out(self, expected_s: float) -> None:
        if expected_s > LOOKED_OUT_S:
            return
        until_s = time.monotonic() + SPUN_UNTIL * expected_s
        if not self._readable.poll(int(SLEPT_SHARE * expected_s * 1e3)):
            while not self._readable.poll(0) and time.monotonic() < until_s:
                pass

    def check(self) -> None:
        """Notice a death that happened while nothing was expected. Raises ChildLost."""
        if self._process.poll() is not None:
            self._lose(f"the policy process {self._ending()}")
        self._refuse_if_lost()

    def close(self) -> None:
        """End the child: it hears that nobody is there any more; if it does not listen, it is killed."""
        self._pipe.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._heartbeat.close()

    def _silence_s(self) -> float:
        return (time.monotonic_ns() - int(self._heartbeat.views(0)["beat_ns"][0])) * 1e-9

    def _refuse_if_lost(self) -> None:
        if self.loss:
            raise ChildLost(self.loss)

    def _lose(self, text: str) -> None:
        """Whatever the child still does, nobody hears it: it is killed, and its pipe is never read again."""
        self.loss = self.loss or text
        self._process.kill()
        self._process.wait()
        raise ChildLost(self.loss)

    def _ending(self) -> str:
        """How the process ended, in words."""
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "hung up"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def start_heartbeat(fd: int) -> None:
    """In the child: beat until stopped, and end it when its parent is gone, even in the middle of an inference."""
    ring, parent = SharedRing(1, fd), os.getppid()
    ring.lay_out(HEARTBEAT)

    def beat() -> None:
        while os.getppid() == parent:
            ring.views(0)["beat_ns"][0] = time.monotonic_ns()
            time.sleep(HEARTBEAT_S)
        os._exit(1)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
