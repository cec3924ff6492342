"""What lies beside the weights of GR00T N1.7: which robot the checkpoint is run for, its groups of joints, statistics.

config.json             sizes of the network
processor_config.json   per embodiment: cameras, groups of state and action, horizon; how images are prepared
statistics.json         {embodiment: {state | action | relative_action: {group: {min, max, q01, q99, ...}}}}
embodiment_id.json      {embodiment: number of its encoders and decoder}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phyai_adapters._deployment import Options, read_json
from phyai_core.types import CameraSpec, Feature, FloatArray, PolicySpec

RTC_MODES = ("none", "identity", "fd", "fd_lagged", "hard", "ramp")
UNBUILT = ("sin_cos_embedding_keys", "mean_std_embedding_keys")
LEAST_RANGE = 1e-8


@dataclass(frozen=True)
class Scale:
    """[low, high] <-> [-1, 1], clipped both ways; [n], or [H, n] where statistics are per row of the chunk."""

    low: FloatArray
    high: FloatArray

    def forward(self, x: FloatArray) -> FloatArray:
        """Robot units -> model units; 0 where the range is a single value."""
        span = self.high - self.low
        unit = np.where(span > LEAST_RANGE, 2 * (x - self.low) / np.maximum(span, LEAST_RANGE) - 1, 0.0)
        return np.clip(unit, -1.0, 1.0).astype(np.float32)

    def inverse(self, x: FloatArray) -> FloatArray:
        """Model units -> robot units."""
        return ((np.clip(x, -1.0, 1.0) + 1) / 2 * (self.high - self.low) + self.low).astype(np.float32)


@dataclass(frozen=True)
class Deployment:
    """One embodiment of a checkpoint. `anchor` [A]: index of the state that a relative action counts from, or -1."""

    layout: str
    embodiment: str
    embodiment_id: int
    action_horizon: int
    cameras: tuple[str, ...]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    state: Scale
    action: Scale
    anchor: np.ndarray
    shortest_edge: int
    crop_fraction: float
    letter_box: bool
    clean_text: bool
    frame_sizes: Mapping[str, tuple[int, int]]

    def spec(self, latent_dim: int, steps: int, rate_hz: float) -> PolicySpec:
        """As executed on the robot."""
        modes = ("relative" if index >= 0 else "absolute" for index in self.anchor)
        return PolicySpec(
            name="groot",
            action_horizon=self.action_horizon,
            dt_s=1.0 / rate_hz,
            cameras=tuple(CameraSpec(key, *self.frame_sizes[key]) for key in self.cameras),
            state=tuple(Feature(name) for name in self.state_names),
            action=tuple(Feature(name, mode=mode) for name, mode in zip(self.action_names, modes, strict=True)),
            latent_dim=latent_dim,
            num_denoise_steps=steps,
            rtc_modes=RTC_MODES,
        )


def read_deployment(folder: Path, options: Options) -> Deployment:
    """Read the processor's files. Raises ValueError naming file, entry and what is allowed."""
    file = folder / "processor_config.json"
    processor, statistics = read_json(file)["processor_kwargs"], read_json(folder / "statistics.json")
    tag = _choose_embodiment(file, processor["modality_configs"], statistics, options.embodiment)
    config, numbers = processor["modality_configs"][tag], statistics[tag]
    _refuse_unbuilt(file, processor, config)
    state_keys, action_keys = (config[name]["modality_keys"] for name in ("state", "action"))
    low, high = ("q01", "q99") if processor.get("use_percentiles") else ("min", "max")
    action_widths = {key: _width(numbers["action"][key]) for key in action_keys}
    state = _joined(folder, tag, [(numbers["state"], key) for key in state_keys], (low, high))
    widths = {key: len(numbers["state"][key][low]) for key in state_keys}
    relative = _relative_groups(file, config["action"], bool(processor.get("use_relative_action")))
    parts = [(numbers["relative_action" if key in relative else "action"], key) for key in action_keys]
    sources = [("min", "max") if key in relative else (low, high) for key in action_keys]
    horizon = len(config["action"]["delta_indices"])
    action = _stack_rows(folder, tag, parts, sources, horizon)
    return Deployment(
        layout="Isaac-GR00T",
        embodiment=tag,
        embodiment_id=read_json(folder / "embodiment_id.json")[tag],
        action_horizon=horizon,
        cameras=tuple(config["video"]["modality_keys"]),
        state_names=_names(options.state_names, "state_names", state_keys, widths),
        action_names=_names(options.action_names, "action_names", action_keys, action_widths),
        state=state,
        action=action,
        anchor=_anchors(action_keys, relative, widths, action_widths),
        shortest_edge=processor.get("shortest_image_edge") or 256,
        crop_fraction=processor.get("crop_fraction") or 1.0,
        letter_box=bool(processor.get("letter_box_transform")),
        clean_text=processor.get("formalize_language", True),
        frame_sizes=_frame_sizes(config["video"]["modality_keys"], options),
    )


def _choose_embodiment(file: Path, configs: Mapping, statistics: Mapping, wanted: str | None) -> str:
    known = sorted(set(configs) & set(statistics))
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted not in known:
        given = "nothing is chosen" if wanted is None else f"{wanted!r} is unknown"
        raise ValueError(
            f'embodiment: {given}; write {{"embodiment": "<name>"}} into phyai.json; {file} with statistics.json has '
            f"{', '.join(known) or 'none'}"
        )
    return wanted


def _refuse_unbuilt(file: Path, processor: Mapping, config: Mapping) -> None:
    for modality in ("state", "action"):
        if found := [name for name in UNBUILT if config[modality].get(name)]:
            raise ValueError(f"{file}: {modality} has {', '.join(found)}; supported: ranges (min, max or quantiles)")
    for name in ("state", "video"):
        if len(config[name]["delta_indices"]) != 1:
            raise ValueError(f"{file}: {name} looks at {config[name]['delta_indices']}; supported: the newest only")
    for name in ("exclude_state", "use_tactile"):
        if processor.get(name):
            raise ValueError(f"{file}: {name} is true; supported: false")


def _relative_groups(file: Path, config: Mapping, enabled: bool) -> dict[str, str]:
    """{group of actions: the group of the state it counts from}."""
    found = {}
    for key, entry in zip(config["modality_keys"], config.get("action_configs") or (), strict=False):
        if enabled and str(entry["rep"]).upper().endswith("RELATIVE"):
            if str(entry["type"]).upper().endswith("NON_EEF"):
                found[key] = entry.get("state_key") or key
            else:
                raise ValueError(
                    f"{file}: actions {key} are poses relative to the hand; supported: joints, and absolute poses"
                )
    return found


def _joined(folder: Path, tag: str, parts: list, names: tuple[str, str]) -> Scale:
    """[S]: groups of the state side by side."""
    rows = [[_row(folder, tag, "state", part, key, name) for part, key in parts] for name in names]
    return Scale(*(np.concatenate(row) for row in rows))


def _row(folder: Path, tag: str, kind: str, part: Mapping, key: str, name: str) -> FloatArray:
    if key not in part or name not in part[key]:
        raise ValueError(f"statistics: {folder / 'statistics.json'} has no {name} of {kind} {key} of {tag}")
    values = np.asarray(part[key][name], np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"statistics: {name} of {kind} {key} of {tag} must be finite numbers")
    return values


def _stack_rows(folder: Path, tag: str, parts: list, sources: list, horizon: int) -> Scale:
    """[H, A]: groups side by side; those with one value for all rows are repeated."""
    sides = []
    for side in (0, 1):
        pairs = zip(parts, sources, strict=True)
        rows = [_row(folder, tag, "action", part, key, names[side]) for (part, key), names in pairs]
        sides.append(np.concatenate([np.broadcast_to(row, (horizon, row.shape[-1])) for row in rows], axis=-1))
    return Scale(*sides)


def _width(group: Mapping[str, Any]) -> int:
    return np.asarray(group["min"]).shape[-1]


def _anchors(keys, relative: Mapping[str, str], state_widths: Mapping[str, int], widths: Mapping[str, int]):
    """[A] index of the state that each action counts from, -1 for absolute ones."""
    starts, at = {}, 0
    for key, width in state_widths.items():
        starts[key], at = at, at + width
    parts = [
        starts[relative[key]] + np.arange(widths[key]) if key in relative else np.full(widths[key], -1) for key in keys
    ]
    return np.concatenate(parts)


def _names(given, option: str, keys, widths: Mapping[str, int]) -> tuple[str, ...]:
    own = [f"{key}_{index}" for key in keys for index in range(widths[key])]
    if given is not None and len(given) != len(own):
        raise ValueError(f"{option}: {len(given)} names given, the checkpoint has {len(own)} values: {', '.join(own)}")
    return tuple(given or own)


def _frame_sizes(cameras, options: Options) -> dict[str, tuple[int, int]]:
    """Sizes of the frames, which the checkpoint does not say and the number of tokens depends on."""
    sizes = {key: tuple(options.frame_sizes.get(key, ())) for key in cameras}
    if unset := [key for key, size in sizes.items() if len(size) != 2]:
        raise ValueError(
            f"frame_sizes: the sizes of {', '.join(unset)} are not known; write "
            f'{{"frame_sizes": {{"{unset[0]}": [<height>, <width>]}}}} into phyai.json'
        )
    if len(set(sizes.values())) != 1:
        raise ValueError(f"frame_sizes: {sizes} differ; supported: one size for all cameras")
    return sizes
