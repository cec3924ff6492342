"""The simulated camera: draws the newest snapshot in its own thread, so that pictures never hold up the physics."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from phyai_ros.sim.scene import Scene, Snapshot, Studio

START_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S = 5.0


class CameraThread:
    """`on_image(rgb [h, w, 3], stamp_ns)` gets the picture of each offered snapshot, unless a newer one came first.

    An OpenGL context belongs to the thread that made it: everything that draws happens in this thread.
    """

    def __init__(
        self, scene: Scene, height: int, width: int, on_image: Callable[[NDArray[np.uint8], int], None]
    ) -> None:
        self._studio, self._size, self._on_image = Studio(scene.model), (height, width), on_image
        self._first = scene.snapshot()
        self._newest: tuple[Snapshot, int] | None = None
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._closing = False
        self._error: Exception | None = None
        self.dropped = 0  # snapshots that were never drawn
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)

    def start(self) -> None:
        """Draw a first picture. Raises RuntimeError with what to install where this machine cannot."""
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise RuntimeError(f"the first picture was not ready after {START_TIMEOUT_S:g} s")
        if self._error is not None:
            raise self._error

    def offer(self, snapshot: Snapshot, stamp_ns: int) -> None:
        """Ask for a picture of the world at `stamp_ns`. Never waits."""
        with self._changed:
            self.dropped += self._newest is not None
            self._newest = (snapshot, stamp_ns)
            self._changed.notify()

    def close(self) -> None:
        """End the thread and free the renderer."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._studio.render(self._first, *self._size)
        except (RuntimeError, ValueError) as error:
            self._error = error
            return
        finally:
            self._ready.set()
        while (offered := self._take()) is not None:
            snapshot, stamp_ns = offered
            self._on_image(self._studio.render(snapshot, *self._size), stamp_ns)
        self._studio.close()

    def _take(self) -> tuple[Snapshot, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._newest is not None)
            offered, self._newest = self._newest, None
            return None if self._closing else offered
