"""Settings and checkpoints in short, to tell later whether two runs had the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from phyai_ros.settings import Settings

WHOLE_BYTES = 64 << 20  # of a larger file the first and the last MiB and the size are hashed
END_BYTES = 1 << 20


def describe_settings(settings: Settings) -> str:
    """Every parameter, defaults included, as JSON."""
    return settings.model_dump_json()


def hash_settings(settings: Settings) -> str:
    """sha256 of every parameter, defaults included."""
    return hashlib.sha256(describe_settings(settings).encode()).hexdigest()


def hash_checkpoint(path: str) -> str:
    """sha256 over the names and contents of a checkpoint's files; empty where nothing is on disk."""
    if not path or not Path(path).exists():
        return ""
    digest, root = hashlib.sha256(), Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        for part in _parts(file):
            digest.update(part)
    return digest.hexdigest()


def _parts(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size > WHOLE_BYTES:
            yield stream.read(END_BYTES)
            stream.seek(-END_BYTES, 2)
        while part := stream.read(END_BYTES):
            yield part
