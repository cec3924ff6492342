"""What no shape tells of a shrunk network: parity fixtures say it in their meta.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phyai_adapters._deployment import read_json


def read_tiny(folder: Path) -> dict[str, Any]:
    """The entry `tiny`; empty for checkpoints of full size."""
    file = folder / "meta.json"
    return read_json(file).get("tiny", {}) if file.is_file() else {}
