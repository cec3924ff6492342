"""Keeps foreign code from changing how this process logs, as libraries do that call logging.basicConfig on import."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_logging() -> Iterator[None]:
    """Afterwards the root logger has the level and the handlers that it had before."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
