"""Checkpoint of `flow_tiny`: a folder with flow_tiny.json (all but the weights) and flow_tiny.safetensors (fp16)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from phyai_core.types import CameraSpec, Feature, PolicySpec

SPEC_FILE = "flow_tiny.json"
WEIGHTS_FILE = "flow_tiny.safetensors"
FORMAT = 1
UNTRAINED_MODES = ("none", "identity", "fd", "fd_lagged", "vjp", "hard", "ramp")
BOTH_FILES = f"give a folder that holds {SPEC_FILE} and {WEIGHTS_FILE}"


@dataclass(frozen=True)
class FlowTinyConfig:
    """What flow_tiny.json holds. Means and deviations are per state value and per action value, in robot units."""

    state: tuple[Feature, ...]
    action: tuple[Feature, ...]
    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    action_mean: tuple[float, ...]
    action_std: tuple[float, ...]
    camera_key: str = "front"
    image_size: int = 64
    horizon: int = 32
    dt_s: float = 0.04
    denoise_steps: int = 5
    condition: int = 192
    width: int = 256
    blocks: int = 4
    rtc_max_delay: int = 0  # ticks; above 0: trained to continue up to so many rows that are given clean
    format: int = FORMAT
    training: dict[str, Any] = field(default_factory=dict)  # how it was made: seeds, steps, data
    measured: dict[str, Any] = field(default_factory=dict)  # how it does: success, where and when it was measured

    @property
    def state_dim(self) -> int:
        return len(self.state)

    @property
    def action_dim(self) -> int:
        return len(self.action)

    def policy_spec(self) -> PolicySpec:
        """The contract of the policy this configuration describes."""
        return PolicySpec(
            name="flow_tiny",
            action_horizon=self.horizon,
            dt_s=self.dt_s,
            cameras=(CameraSpec(self.camera_key, self.image_size, self.image_size),),
            state=self.state,
            action=self.action,
            latent_dim=self.action_dim,
            num_denoise_steps=self.denoise_steps,
            rtc_modes=(*UNTRAINED_MODES, "trained") if self.rtc_max_delay else UNTRAINED_MODES,
            rtc_max_delay=self.rtc_max_delay,
        )


def write_checkpoint(folder: Path, config: FlowTinyConfig, weights: Mapping[str, Tensor]) -> None:
    """Write both files; weights are rounded to fp16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS_FILE).write_bytes(save({name: tensor.half().contiguous() for name, tensor in weights.items()}))
    write_config(folder, config)


def write_config(folder: Path, config: FlowTinyConfig) -> None:
    """Write flow_tiny.json alone."""
    plain = {item.name: getattr(config, item.name) for item in fields(config)}
    for name in ("state", "action"):
        plain[name] = [vars(feature) for feature in plain[name]]
    (folder / SPEC_FILE).write_text(json.dumps(plain, indent=2) + "\n")


def read_checkpoint(
    folder: Path, reference: Callable[[FlowTinyConfig], Mapping[str, Tensor]]
) -> tuple[FlowTinyConfig, dict[str, Tensor]]:
    """Configuration and float32 weights; `reference` gives the tensors that the configured network has.

    Raises ValueError naming the file and the fix when a file is absent, damaged, or does not fit the network.
    """
    config = read_config(folder)
    weights_file = folder / WEIGHTS_FILE
    if not weights_file.is_file():
        raise ValueError(f"checkpoint: {weights_file} is missing; {BOTH_FILES}.")
    try:
        weights = load_file(weights_file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"checkpoint: {weights_file} cannot be read ({error}); copy or train it again.") from error
    problems = _differences(reference(config), weights)
    if problems:
        raise ValueError(f"checkpoint: {weights_file} does not fit the network of {SPEC_FILE}: {'; '.join(problems)}.")
    return config, {name: tensor.to(torch.float32) for name, tensor in weights.items()}


def read_config(folder: Path) -> FlowTinyConfig:
    """Read flow_tiny.json. Raises ValueError naming the file, the field and the fix."""
    spec_file = folder / SPEC_FILE
    if not spec_file.is_file():
        raise ValueError(f"checkpoint: {spec_file} is missing; {BOTH_FILES}.")
    try:
        plain = json.loads(spec_file.read_text())
        for name in ("state", "action"):
            plain[name] = tuple(Feature(**feature) for feature in plain[name])
        config = FlowTinyConfig(**{name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"checkpoint: {spec_file} does not describe flow_tiny ({error}); train it again.") from error
    _check_config(spec_file, config)
    return config


def _check_config(spec_file: Path, config: FlowTinyConfig) -> None:
    if config.format != FORMAT:
        raise ValueError(f"checkpoint: {spec_file} has format {config.format!r}; allowed is {FORMAT}; train it again.")
    for name, length in (("state", config.state_dim), ("action", config.action_dim)):
        mean, std = getattr(config, f"{name}_mean"), getattr(config, f"{name}_std")
        if len(mean) != length or len(std) != length or min(std, default=1.0) <= 0.0:
            raise ValueError(
                f"checkpoint: {spec_file} has {len(mean)} {name}_mean and {len(std)} {name}_std values; "
                f"allowed are {length} of each, deviations above 0."
            )


def _differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """What keeps `found` from being loaded, one phrase per kind of difference."""
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    reshaped = [
        f"{name} {list(found[name].shape)} instead of {list(expected[name].shape)}"
        for name in sorted(expected.keys() & found.keys())
        if found[name].shape != expected[name].shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("reshaped", reshaped))
    return [f"{kind} {', '.join(names)}" for kind, names in kinds if names]
