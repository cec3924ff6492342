"""Weights from safetensors files: memory-mapped, copied tensor by tensor to where the model keeps them.

The model names its targets: {canonical key: tensor or view of the shape in the file}. A fused parameter is a target
per part. Every key of the file and every target is accounted for in the report; nothing is skipped in silence.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

Progress = Callable[[int, int], None]  # (bytes copied, bytes in all)
NAMES_SHOWN = 6
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class Checkpoint:
    """The tensors of a .safetensors file, or of a folder with model.safetensors or its sharded index.

    `stem`: what the file is called instead of model.
    """

    def __init__(self, path: Path, stem: str = "model"):
        self.path = Path(path)
        self._readers = {file: _open(file) for file in _files(self.path, f"{stem}.safetensors")}
        self.files = {file: tuple(reader.keys()) for file, reader in self._readers.items()}
        self._where = {key: self._readers[file] for file, keys in self.files.items() for key in keys}
        slices = {key: reader.get_slice(key) for key, reader in self._where.items()}
        self.shapes = {key: tuple(entry.get_shape()) for key, entry in slices.items()}
        self.dtypes = {key: entry.get_dtype() for key, entry in slices.items()}

    def tensor(self, key: str) -> Tensor:
        """The tensor `key` on the CPU, backed by the mapped file."""
        return self._where[key].get_tensor(key)

    def read_ahead(self) -> None:
        """Have the system read the files from front to end, since tensors are asked for in another order."""
        if not hasattr(os, "posix_fadvise"):
            return
        for file in self.files:
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def bytes(self, key: str) -> int:
        """Size of the tensor `key` in the file."""
        return BYTES.get(self.dtypes[key], 1) * torch.Size(self.shapes[key]).numel()


def _files(path: Path, name: str) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / f"{name}.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [path / shard for shard in shards]
    if (path / name).is_file():
        return [path / name]
    raise ValueError(f"checkpoint: {path} has neither {name} nor {index.name}")


def _open(file: Path):
    try:
        return safe_open(file, framework="pt", device="cpu")
    except FileNotFoundError:
        raise ValueError(f"checkpoint: {file} is named by the index but does not exist; copy all shards") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"checkpoint: {file} cannot be read ({error}); it is damaged or still being copied") from None


@dataclass(frozen=True)
class LoadReport:
    """What became of every key. `reshaped`: (key, shape in the file, shape the model wants)."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    tied: tuple[tuple[str, str], ...]  # (key, the key it was filled from)
    unused: tuple[str, ...]  # in the file, known, and not needed
    bytes: int
    seconds: float

    def problems(self) -> list[str]:
        """One sentence for each kind of problem; empty when the file fits the model."""
        reshaped = [f"{key} is {list(have)}, wanted {list(want)}" for key, have, want in self.reshaped]
        kinds = (("missing", self.missing), ("unexpected", self.unexpected), ("of another shape", reshaped))
        return [f"{len(names)} {kind}: {_shorten(names)}" for kind, names in kinds if names]


def _shorten(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def load_weights(
    checkpoint: Checkpoint,
    targets: Mapping[str, Tensor],
    *,
    canonical: Callable[[str], str] = lambda key: key,
    tied: Mapping[str, str] | None = None,
    unused: Iterable[str] = (),
    progress: Progress | None = None,
) -> LoadReport:
    """Fill every target from the checkpoint. Raises ValueError with all problems by name before anything is copied.

    `canonical` turns keys of the file into keys of `targets`. `tied` {key: other key} says where a key that the file
    lacks comes from. `unused` are glob patterns of canonical keys that may be in the file and are not needed.
    """
    start_s = time.perf_counter()
    found = _canonical_keys(checkpoint, canonical)
    tied = {key: other for key, other in (tied or {}).items() if key not in found and other in found}
    sources = {key: found[tied.get(key, key)] for key in targets if tied.get(key, key) in found}
    report = _account(checkpoint, targets, found, sources, tied, list(unused))
    if problems := report.problems():
        raise ValueError(f"checkpoint: {checkpoint.path} does not fit the model. " + ". ".join(problems) + ".")
    checkpoint.read_ahead()
    copied = _copy(checkpoint, targets, sources, progress)
    return LoadReport(**{**vars(report), "bytes": copied, "seconds": time.perf_counter() - start_s})


def _canonical_keys(checkpoint: Checkpoint, canonical: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in checkpoint.shapes:
        name = canonical(key)
        if name in found:
            raise ValueError(f"checkpoint: {checkpoint.path} holds {name} twice, as {found[name]} and as {key}")
        found[name] = key
    return found


def _account(checkpoint, targets, found, sources, tied, unused: list[str]) -> LoadReport:
    left = [name for name, key in found.items() if key not in sources.values()]
    known = [name for name in left if any(fnmatchcase(name, pattern) for pattern in unused)]
    shapes = [(name, checkpoint.shapes[key], tuple(targets[name].shape)) for name, key in sources.items()]
    return LoadReport(
        loaded=tuple(sources),
        missing=tuple(name for name in targets if name not in sources),
        unexpected=tuple(name for name in left if name not in known),
        reshaped=tuple(entry for entry in shapes if entry[1] != entry[2]),
        tied=tuple(tied.items()),
        unused=tuple(known),
        bytes=0,
        seconds=0.0,
    )


@torch.no_grad()
def _copy(checkpoint: Checkpoint, targets, sources: Mapping[str, str], progress: Progress | None) -> int:
    total = sum(checkpoint.bytes(key) for key in sources.values())
    copied = 0
    for name, key in sources.items():
        target = targets[name]
        target.copy_(checkpoint.tensor(key).to(target.device))  # moved as stored, converted on the device
        copied += checkpoint.bytes(key)
        if progress is not None:
            progress(copied, total)
    return copied
