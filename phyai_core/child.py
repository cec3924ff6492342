"""The child process that owns the model and its device: `python -m phyai_core.child`, started by RemoteEngine.

It knows nothing of ROS, answers one message after the other, and ends when its parent does.
"""

from __future__ import annotations

import gc
import signal
import sys

from phyai_core.child_process import start_heartbeat
from phyai_core.engine import Engine
from phyai_core.message_socket import MessageSocket
from phyai_core.shared_ring import SharedRing
from phyai_core.wire import (
    SLOTS,
    Done,
    Failed,
    Handles,
    Infer,
    Loaded,
    Progressed,
    Warm,
    WarmUp,
    chunk_layout,
    read_request,
)


def main(handles: Handles) -> None:
    """Serve until the parent hangs up. The first message is the recipe of the engine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent brakes, then ends us
    start_heartbeat(handles.heartbeat)
    connection = MessageSocket.open(handles.pipe)
    try:
        server = _load(connection, handles)
        while server is not None:
            server.answer(connection.receive())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _load(connection: MessageSocket, handles: Handles) -> _Server | None:
    try:
        engine = connection.receive().build()
    except Exception as error:
        connection.send(describe_failure(error))
        return None
    connection.send(Loaded(engine.spec))
    return _Server(engine, connection, handles)


def describe_failure(error: Exception) -> Failed:
    """A ValueError keeps its words; anything else says its type, too."""
    user_error = isinstance(error, ValueError)
    return Failed(str(error) if user_error else f"{type(error).__name__}: {error}", user_error)


class _Server:
    """An engine behind a pipe."""

    def __init__(self, engine: Engine, connection: MessageSocket, handles: Handles) -> None:
        self._engine, self._connection = engine, connection
        self._requests, self._chunks = SharedRing(SLOTS, handles.requests), SharedRing(SLOTS, handles.chunks)

    def answer(self, message: WarmUp | Infer) -> None:
        """One message, one answer, whatever happens in between."""
        try:
            answer = self._warm_up(message) if isinstance(message, WarmUp) else self._infer(message)
        except Exception as error:
            answer = describe_failure(error)
        self._connection.send(answer)

    def _warm_up(self, message: WarmUp) -> Warm:
        send = self._connection.send
        seconds = self._engine.warm_up(message.runs, lambda done, total: send(Progressed(done, total)))
        gc.collect()
        gc.freeze()  # the model never becomes garbage; later collections skip it
        return Warm(seconds, self._engine.kernel_choices)

    def _infer(self, message: Infer) -> Done:
        if message.layout is not None:
            self._requests.lay_out(message.layout)
            self._chunks.lay_out(chunk_layout(self._engine.spec))
        result = self._engine.infer(*read_request(message, self._requests.views(message.seq)))
        self._chunks.write(message.seq, {"latent": result.latent, "actions": result.actions})
        return Done(message.seq, result.stages_s)


if __name__ == "__main__":
    main(Handles(*(int(handle) for handle in sys.argv[1:])))
