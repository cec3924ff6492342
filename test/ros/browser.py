"""A headless Chromium for tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
TIMEOUT_S = 60.0


def browse(url: str, folder: Path, width: int, height: int, *what: str, page_ms: int = 3000) -> str:
    """Open `url`, let `page_ms` of the page's time pass, then do `what`: --dump-dom or --screenshot=FILE."""
    profile = folder / f"profile_{width}_{len(list(folder.iterdir()))}"
    options = (f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--virtual-time-budget={page_ms}")
    command = [CHROMIUM, *FLAGS, *options, *what, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
