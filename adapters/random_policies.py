"""Policies with random weights: for measuring speed, memory and start-up without a trained checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import torch
from safetensors.torch import save_file

from phyai_adapters import ADAPTERS
from phyai_adapters._deployment import Options
from phyai_adapters._loading import fill_random, random_parts
from phyai_adapters._openpi import CAMERAS, STATISTICS
from phyai_adapters._paligemma import FULL, TINY
from phyai_adapters.random_vlas import MAKERS, random_vla
from phyai_core.adapter import Adapter

SIZES = {"full": FULL, "tiny": TINY}
NAMES = ("pi0", "pi05")
RATE_HZ = 50.0


def random_adapter(
    name: str,
    device: torch.device,
    size: str = "full",
    cameras: int = 3,
    prompt_tokens: int = 200,
    dtype: str | None = None,
    seed: int = 0,
    fp8_prefix: bool = False,
) -> Adapter:
    """The policy `name` with random weights, prompts padded to `prompt_tokens`, the state not in the prompt.

    On the meta device it has no weights, only shapes. Raises ValueError with what is allowed.
    """
    _check(name, size, NAMES + tuple(MAKERS))
    if not 1 <= cameras <= len(CAMERAS):
        raise ValueError(f"cameras: {cameras} asked for; allowed are 1 to {len(CAMERAS)}")
    if not 4 <= prompt_tokens <= 1024:
        raise ValueError(f"prompt tokens: {prompt_tokens} asked for; allowed are 4 to 1024")
    if name in MAKERS:
        return random_vla(name, device, size, CAMERAS[:cameras], prompt_tokens, dtype, seed)
    side = SIZES[size].vision.image_size
    options = Options(
        rate_hz=RATE_HZ,
        cameras=CAMERAS[:cameras],
        frame_sizes=dict.fromkeys(CAMERAS[:cameras], (side, side)),
        prompt_buckets=(),
        dtype=dtype,
        fp8_prefix=fp8_prefix,
        state_in_prompt=False,
    )
    adapter_class = _adapter_class(name)
    parts = random_parts(adapter_class.network_class, SIZES[size], device, options, seed)
    return adapter_class(parts._replace(deployment=replace(parts.deployment, prompt_tokens=prompt_tokens)))


@dataclass(frozen=True)
class RandomLoad:
    """`random_adapter` with the signature of `load_adapter`, for engines made in another process."""

    size: str = "full"
    cameras: int = 3
    prompt_tokens: int = 200
    dtype: str | None = None
    fp8_prefix: bool = False

    def __call__(self, name: str, checkpoint: Path | None, device: torch.device) -> Adapter:
        sizes = (self.size, self.cameras, self.prompt_tokens)
        return random_adapter(name, device, *sizes, self.dtype, fp8_prefix=self.fp8_prefix)


def write_checkpoint(name: str, folder: Path, device: torch.device, size: str = "full", seed: int = 0) -> int:
    """A checkpoint folder in the openpi layout, bfloat16 on a CUDA device. Returns the bytes of its weights."""
    _check(name, size, NAMES)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    network = _adapter_class(name).network_class.empty(SIZES[size], device, dtype, dtype)
    fill_random(network, seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.to("cpu", dtype).contiguous() for key, tensor in network.targets().items()}
    save_file(tensors, folder / "model.safetensors")
    width = SIZES[size].latent_dim
    low, high = STATISTICS[name]
    entry = {low: [-1.0 if low == "q01" else 0.0] * width, high: [1.0] * width}
    _write(folder / "config.json", {"action_horizon": 50, "max_token_len": 200})
    _write(folder / "assets" / "random" / "norm_stats.json", {"norm_stats": {"state": entry, "actions": entry}})
    _write(folder / "phyai.json", {"rate_hz": RATE_HZ, "tokenizer": "bytes"})
    return sum(tensor.nbytes for tensor in tensors.values())


def _check(name: str, size: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ValueError(f"adapter: {name!r} has no random weights; allowed are {', '.join(names)}")
    if size not in SIZES:
        raise ValueError(f"size: {size!r} is unknown; allowed are {', '.join(SIZES)}")


def _adapter_class(name: str) -> Callable:
    module, _, attribute = ADAPTERS[name].partition(":")
    return getattr(import_module(module), attribute)


def _write(file: Path, values: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
