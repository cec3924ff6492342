"""Placement `thread`: inference runs in a thread of the node.

A placement has `start()`, `stop() -> bool`, `restart()` and `alive`; it serves the requests of one executor.
"""

from __future__ import annotations

import threading

from phyai_core.executor import RtcExecutor

JOIN_TIMEOUT_S = 2.0
POLL_S = 0.1


class InferenceThread:
    """Runs pending requests until stopped. A thread that does not return is left alone, never doubled."""

    def __init__(self, executor: RtcExecutor) -> None:
        self._executor = executor
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """True when the thread has ended; False when an inference still runs after 2 s."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)
        return not self._thread.is_alive()

    def restart(self) -> None:
        """Nothing to do: a thread is never lost."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._executor.wait_for_request(POLL_S):
                self._executor.step_inference()
