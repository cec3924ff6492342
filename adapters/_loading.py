"""From a checkpoint folder, or from nothing but sizes, to the parts a pi adapter is made of."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from phyai_adapters._deployment import Deployment, Options, choose_dtypes, read_json, read_options
from phyai_adapters._lerobot import is_lerobot, read_lerobot
from phyai_adapters._openpi import CAMERAS, PROMPT_TOKENS, read_openpi
from phyai_adapters._paligemma import EXPERT, LANGUAGE, LM_HEAD, PiNetwork, PiSizes, canonical_key, read_sizes
from phyai_adapters._processing import Normaliser
from phyai_adapters._tokenizers import ByteTokenizer, Tokenizer, open_tokenizer
from phyai_core.layers.fp8 import refuse_fp8
from phyai_core.types import PolicySpec
from phyai_core.weights import Checkpoint, LoadReport, Progress, load_weights

RANDOM_STD = 0.02
SCALE = "_scale"  # what the key of an FP8 weight's scales ends with


class PiParts(NamedTuple):
    """What an adapter holds. `report` is None for random weights."""

    spec: PolicySpec
    deployment: Deployment
    network: PiNetwork
    tokenizer: Tokenizer
    options: Options
    report: LoadReport | None


def load_parts(
    network_class: type[PiNetwork],
    checkpoint: Path | None,
    device: torch.device,
    options: Options | None,
    progress: Progress | None,
) -> PiParts:
    """Read a checkpoint in lerobot or openpi layout; cheap checks come before the weights.

    Raises ValueError naming the file or option at fault.
    """
    kind = network_class.kind
    folder = _check_arguments(kind, checkpoint, device)
    options = read_options(folder) if options is None else options
    weights = Checkpoint(folder)
    shapes = {canonical_key(key, kind): shape for key, shape in weights.shapes.items()}
    sizes = read_sizes(shapes, **declared_heads(folder))
    deployment = _read_deployment(kind, folder, shapes, sizes, options)
    spec = deployment.spec(sizes.latent_dim, options.rate_hz, folder)
    tokenizer = open_tokenizer(options.tokenizer, folder)
    stored = {canonical_key(key, kind) for key, dtype in weights.dtypes.items() if dtype.startswith("F8")}
    _check_fp8(options, bool(stored), device)
    network = network_class.empty(sizes, device, *choose_dtypes(options, device), fp8_prefix=bool(stored))
    _check_scheme(folder, network, stored)
    report = load_weights(
        weights,
        network.targets(),
        canonical=lambda key: canonical_key(key, kind),
        tied={LANGUAGE + "embed_tokens.weight": LM_HEAD},
        unused=network.unused(),
        progress=progress,
    )
    if options.fp8_prefix and not stored:
        network.round_prefix()
    return PiParts(spec, deployment, network, tokenizer, options, report)


def random_parts(
    network_class: type[PiNetwork], sizes: PiSizes, device: torch.device, options: Options, seed: int
) -> PiParts:
    """The same parts with normal random weights and identity statistics, for measuring speed without a checkpoint."""
    kind = network_class.kind
    _check_fp8(options, False, device)
    network = network_class.empty(sizes, device, *choose_dtypes(options, device))
    fill_random(network, seed)
    if options.fp8_prefix:
        network.round_prefix()
    names = tuple(f"joint_{index}" for index in range(sizes.latent_dim))
    deployment = Deployment(
        kind=kind,
        layout="openpi",
        action_horizon=50,
        num_denoise_steps=10,
        prompt_tokens=PROMPT_TOKENS[kind],
        image_size=sizes.vision.image_size,
        cameras=dict.fromkeys(CAMERAS, (sizes.vision.image_size,) * 2),
        state=Normaliser(),
        action=Normaliser(),
        state_names=names,
        action_names=names,
        relative=np.zeros(len(names), bool),
    ).choose(options)
    spec = deployment.spec(sizes.latent_dim, options.rate_hz or 50.0)
    return PiParts(spec, deployment, network, ByteTokenizer(), options, None)


@torch.no_grad()
def fill_random(network: nn.Module, seed: int) -> None:
    """Normal random weights of standard deviation RANDOM_STD; layer norms keep weights near 1. Nothing on meta."""
    if next(network.parameters()).is_meta:
        return
    generator = torch.Generator(next(network.parameters()).device).manual_seed(seed)
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            parameter.normal_(0.0, RANDOM_STD, generator=generator)
            if isinstance(module, nn.LayerNorm) and name == "weight":
                parameter.add_(1.0)


def fp8_keys(network: PiNetwork) -> set[str]:
    """Canonical keys of the weights that this network holds in FP8."""
    return {key.removesuffix(SCALE) for key in network.targets() if key.endswith(SCALE)}


def _check_arguments(kind: str, checkpoint: Path | None, device: torch.device) -> Path:
    if checkpoint is None:
        raise ValueError(f"checkpoint: {kind} ships no weights; give the folder of a checkpoint")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {device} is not available on this machine; allowed here: cpu")
    if not Path(checkpoint).is_dir():
        raise ValueError(f"checkpoint: {checkpoint} is not a folder; give the folder that holds model.safetensors")
    return Path(checkpoint)


def _check_fp8(options: Options, stored: bool, device: torch.device) -> None:
    if (options.fp8_prefix or stored) and (reason := refuse_fp8(device)):
        what = "the checkpoint's prefix is in FP8" if stored else "fp8_prefix is true in phyai.json"
        raise ValueError(f"device: {what}, but {reason}; take the checkpoint that is not quantised")


def _check_scheme(folder: Path, network: PiNetwork, stored: set[str]) -> None:
    if wrong := sorted(stored ^ fp8_keys(network)):
        raise ValueError(
            f"checkpoint: {folder} holds FP8 weights of an unknown scheme ({wrong[0]} and {len(wrong) - 1} more "
            "differ); supported is fp8-prefix, as phyai-ros quantize writes it"
        )


def declared_heads(folder: Path) -> dict[str, int]:
    """Heads of a shrunk vision tower, which no shape tells: in the meta.json of parity fixtures."""
    meta = read_json(folder / "meta.json") if (folder / "meta.json").is_file() else {}
    heads = meta.get("tiny", {}).get("vision", {}).get("num_attention_heads")
    return {} if heads is None else {"vision_heads": heads}


def _read_deployment(kind: str, folder: Path, shapes, sizes: PiSizes, options: Options) -> Deployment:
    lerobot = is_lerobot(folder)
    found = "pi05" if EXPERT + "norm.dense.weight" in shapes else "pi0"
    if lerobot:
        found = read_json(folder / "config.json")["type"]
    if found != kind:
        raise ValueError(f"adapter: {folder} is a {found} checkpoint; use the adapter {found}, not {kind}")
    if lerobot:
        deployment = read_lerobot(folder, options)
    else:
        deployment = read_openpi(folder, kind, sizes.vision.image_size, options)
    return deployment.choose(options)
