"""The rclpy executor of our nodes and how they end.

EventsExecutor where rclpy has it (Jazzy and later): the lowest latency, and it leaves the interpreter alone between
events. An unbounded spin of it can hang in some builds, so every spin here is bounded. Never MultiThreadedExecutor: it
resubmits a callback until a pool thread takes it, and so starves the very threads it feeds.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.task import Future

SPIN_S = 0.1


def make_executor(context: Any = None) -> Any:
    """An executor for one process; add the node to it, `spin_until`, then shut it down."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:  # Humble
        return SingleThreadedExecutor(context=context)
    return EventsExecutor(context=context)


def spin_until(executor: Any, stopping: threading.Event) -> None:
    """Run callbacks in this thread until `stopping` is set, noticed within 0.1 s."""
    never: Future = Future()
    while not stopping.is_set():
        executor.spin_until_future_complete(never, SPIN_S)


def stop_on_signals(stopping: threading.Event) -> None:
    """SIGINT and SIGTERM set `stopping`. Initialise rclpy with SignalHandlerOptions.NO, so that the ROS context lives
    until the node has sent its last message."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stopping.set())
