"""How a command tells that it failed."""

from __future__ import annotations


class CommandFailed(RuntimeError):
    """The command ran and something went wrong; the text is for the user. Exit code 1, no traceback."""
