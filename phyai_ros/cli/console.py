"""How the commands write on the screen, and into pipes and files."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

PIPE_COLUMNS = 1000  # so that a row stays a line, for grep and for logs


def make_console() -> Console:
    """As wide as the terminal; where the output goes elsewhere, so wide that nothing is folded (or as COLUMNS says)."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS)


def tell_written(console: Console, path: Path) -> None:
    """Every file that a command leaves behind is named."""
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def tell_on_stderr(message: object, style: str) -> None:
    """A sentence about what went wrong, or may."""
    Console(stderr=True).print(f"phyai-ros: {message}", style=style, markup=False, highlight=False, soft_wrap=True)
