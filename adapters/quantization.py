"""Rounds a checkpoint once, offline, to one that loads faster and runs faster, and tells what that does to its actions.

The scheme fp8-prefix: QKV, gate, up and down weights of the prefix as FP8 (e4m3) with one scale per output channel,
`<key>_scale`; what they multiply is rounded while it runs, with one scale per token. Everything else is copied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from phyai_adapters import ADAPTERS
from phyai_adapters._loading import SCALE, declared_heads, fp8_keys
from phyai_adapters._paligemma import PiNetwork, canonical_key, read_sizes
from phyai_adapters.fixtures import trace_recording
from phyai_core.adapter import Adapter
from phyai_core.bench import prompts_for, random_observation
from phyai_core.engine import Engine, plain_tables
from phyai_core.inference import seeded_noise
from phyai_core.verification import read_recording
from phyai_core.weights import Checkpoint
from phyai_kernels.quantize_rows import FP8, quantize_weight

SCHEMES = ("fp8-prefix",)
POLICIES = ("pi0", "pi05")
RECORD = "quantization.json"
INDEX = "model.safetensors.index.json"
RANDOM_INPUTS = 4
META = torch.device("meta")


@dataclass(frozen=True)
class Written:
    """What a quantised checkpoint consists of."""

    scheme: str
    tensors: int  # that were rounded
    bytes_before: int
    bytes_after: int


def check_quantizable(name: str, scheme: str) -> None:
    """Raise ValueError for a policy or scheme that is not supported."""
    if scheme not in SCHEMES:
        raise ValueError(f"--scheme: {scheme!r} is unknown; allowed: {', '.join(SCHEMES)}")
    if name not in POLICIES:
        raise ValueError(f"--adapter: {name} cannot be quantised; {scheme} is for {', '.join(POLICIES)}")


@contextmanager
def new_folder(out: Path, checkpoint: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `out` when all went well and is gone otherwise. Raises ValueError."""
    if out.exists():
        raise ValueError(f"{out} exists; give a folder that does not, or remove it")
    if checkpoint.resolve() in out.resolve().parents:
        raise ValueError(f"{out} is inside of {checkpoint}, which is copied; give a folder beside it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent) as scratch:
        yield Path(scratch) / out.name
        (Path(scratch) / out.name).rename(out)


@torch.no_grad()
def write_quantized(checkpoint: Path, name: str, folder: Path, device: torch.device) -> Written:
    """Write the checkpoint of the policy `name` to `folder`, rounded on `device`.

    Raises ValueError for one that is rounded already.
    """
    weights = Checkpoint(checkpoint)
    if any(dtype.startswith("F8") for dtype in weights.dtypes.values()):
        raise ValueError(f"checkpoint: {checkpoint} already holds FP8 weights; quantise the one it was made from")
    heavy = {file.name for file in weights.files} | {INDEX}
    shutil.copytree(checkpoint, folder, ignore=lambda here, names: heavy if Path(here) == checkpoint else ())
    wanted, places, after = _fp8_keys(checkpoint, weights, name), {}, 0
    for file, keys in weights.files.items():
        tensors = {}
        for key in keys:
            tensors.update(_convert(weights, key, canonical_key(key, name) in wanted, device))
        save_file(tensors, folder / file.name, metadata={"format": "pt"})
        shutil.copymode(file, folder / file.name)
        places.update(dict.fromkeys(tensors, file.name))
        after += sum(tensor.nbytes for tensor in tensors.values())
    if len(weights.files) > 1:
        _write(folder / INDEX, {"metadata": {"total_size": after}, "weight_map": places})
    before = sum(weights.bytes(key) for key in weights.shapes)
    return Written(SCHEMES[0], len(wanted), before, after)


def sample_chunks(adapter: Adapter, device: torch.device, recording: Path | None) -> list[np.ndarray]:
    """Chunks [H, A] in model units, from recorded inputs and noise, or from random ones, always the same."""
    width = adapter.spec.action_dim
    if recording is not None:
        *_, stage = trace_recording(adapter, read_recording(recording).inputs, device)
        return [*stage.value[..., :width].double().cpu().numpy()]
    engine, tables = Engine(adapter, device, use_graphs=False), plain_tables(adapter.spec)
    prompts = prompts_for(adapter, RANDOM_INPUTS)
    chunks = []
    for seed in range(RANDOM_INPUTS):
        observation = random_observation(adapter.spec, prompts[seed % len(prompts)], seed)
        noise = seeded_noise(seed, 0, *adapter.spec.noise_shape)
        chunks.append(engine.infer(observation, tables, noise).latent[:, :width].astype(np.float64))
    engine.close()
    return chunks


def relative_errors(chunks: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Relative L2 norm of the difference, chunk by chunk."""
    pairs = zip(chunks, expected, strict=True)
    return [float(np.linalg.norm(chunk - right) / np.linalg.norm(right)) for chunk, right in pairs]


def write_record(folder: Path, written: Written, **facts: Any) -> None:
    """Keep beside the weights what was done to them and what it does to the actions."""
    _write(folder / RECORD, {**asdict(written), **facts})


def describe_quantization(folder: Path, dtypes: Collection[torch.dtype]) -> str:
    """What was done to the weights of a checkpoint that is loaded in these types, and what that does to its actions."""
    if FP8 not in dtypes:
        return ""
    record = json.loads((folder / RECORD).read_text()) if (folder / RECORD).is_file() else {}
    if not record:
        return f"{SCHEMES[0]}, not compared with its original"
    return f"{record['scheme']}, actions differ by up to {max(record['relative_l2']):.1e} (relative L2)"


def _fp8_keys(folder: Path, weights: Checkpoint, name: str) -> set[str]:
    module, _, attribute = ADAPTERS[name].partition(":")
    network: type[PiNetwork] = getattr(import_module(module), attribute).network_class
    shapes = {canonical_key(key, name): shape for key, shape in weights.shapes.items()}
    sizes = read_sizes(shapes, **declared_heads(folder))
    return fp8_keys(network.empty(sizes, META, torch.bfloat16, torch.bfloat16, fp8_prefix=True))


def _convert(weights: Checkpoint, key: str, rounded: bool, device: torch.device) -> dict[str, torch.Tensor]:
    tensor = weights.tensor(key)
    if not rounded:
        return {key: tensor}
    values, scales = quantize_weight(tensor.to(device))
    return {key: values.cpu(), f"{key}{SCALE}": scales.cpu()}


def _write(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n")
