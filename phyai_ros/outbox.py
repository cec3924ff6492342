"""Work that the control thread hands on, so that no message is built and no socket is touched within a tick."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

DEPTH = 64  # newer work displaces the oldest: the reader is told late, the robot never
JOIN_TIMEOUT_S = 2.0


class Outbox:
    """One thread that does what it is given, in order. `on_error` hears of anything that raises."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._work: deque[Callable[[], None]] = deque(maxlen=DEPTH)
        self._due, self._on_error = threading.Semaphore(0), on_error
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Returns at once; `work` runs soon."""
        self._work.append(work)
        self._due.release()

    def close(self) -> None:
        """Do what is left, then end."""
        self._closing = True
        self._due.release()
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while not (self._closing and not self._work):
            self._due.acquire()
            while self._work:
                self._do(self._work.popleft())

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._on_error(error)
