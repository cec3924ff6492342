"""Reference numbers of real-time chunking: float64, from an independent implementation, rounded to 12 decimals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "rtc.json").read_text())
