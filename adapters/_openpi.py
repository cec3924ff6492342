"""Checkpoint folders as openpi writes them: model.safetensors and assets/<asset_id>/norm_stats.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phyai_adapters._deployment import Deployment, Options, read_json
from phyai_adapters._processing import MeanStd, Normaliser, Range

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
EPS = 1e-6
NUM_DENOISE_STEPS = 10
PROMPT_TOKENS = {"pi0": 48, "pi05": 200}
STATISTICS = {"pi0": ("mean", "std"), "pi05": ("q01", "q99")}


def find_statistics(folder: Path, options: Options) -> Path:
    """The norm_stats.json to use. Raises ValueError saying where it was looked for."""
    if options.statistics:
        return folder / options.statistics
    found = sorted(folder.glob("assets/**/norm_stats.json"))
    if options.asset_id:
        found = [file for file in found if file.parent == folder / "assets" / options.asset_id]
    if len(found) == 1:
        return found[0]
    names = [str(file.parent.relative_to(folder / "assets")) for file in found]
    if not found:
        wanted = f"assets/{options.asset_id or '<asset_id>'}/norm_stats.json"
        fix = 'copy it there or write {"statistics": "<file>"} into phyai.json'
        raise ValueError(f"statistics: {folder} has no {wanted}; {fix}")
    raise ValueError(f"asset_id: {folder} has several ({', '.join(names)}); write one into phyai.json as asset_id")


def read_openpi(folder: Path, kind: str, image_size: int, options: Options) -> Deployment:
    """The deployment in an openpi checkpoint folder. Raises ValueError naming the file and the entry."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    file = find_statistics(folder, options)
    statistics = read_json(file).get("norm_stats", {})
    state, state_width = _normaliser(file, statistics, "state", kind, options.state_names)
    action, action_width = _normaliser(file, statistics, "actions", kind, options.action_names)
    return Deployment(
        kind=kind,
        layout="openpi",
        action_horizon=options.action_horizon or _horizon(folder, config),
        num_denoise_steps=NUM_DENOISE_STEPS,
        prompt_tokens=config.get("max_token_len") or PROMPT_TOKENS[kind],
        image_size=image_size,
        cameras=dict.fromkeys(CAMERAS, (image_size, image_size)),
        state=state,
        action=action,
        state_names=tuple(f"state_{index}" for index in range(state_width)),
        action_names=tuple(f"action_{index}" for index in range(action_width)),
        relative=_delta_mask(options.delta_mask, action_width),
    )


def _horizon(folder: Path, config: Mapping[str, Any]) -> int:
    """The rows of a chunk cannot be read from the weights, and another number than in training spoils the policy."""
    if "action_horizon" not in config:
        raise ValueError(
            f"action_horizon: {folder} has no config.json that says it; write the number of the training "
            'configuration (50 for the base models) into phyai.json: {"action_horizon": 50}'
        )
    return config["action_horizon"]


def _delta_mask(mask: Sequence[int], width: int) -> np.ndarray:
    """(6, -1) -> six True, one False, and False up to `width`."""
    flags = [count > 0 for count in mask for _ in range(abs(count))]
    if len(flags) > width:
        raise ValueError(f"delta_mask: {list(mask)} covers {len(flags)} values, the policy has {width} actions")
    return np.array(flags + [False] * (width - len(flags)), dtype=bool)


def _normaliser(file: Path, statistics, key: str, kind: str, names: Sequence[str] | None) -> tuple[Normaliser, int]:
    """pi0 is trained on z-scores, pi0.5 on quantiles. Statistics of padded vectors are cut to the names given."""
    low, high = (_statistic(file, statistics, key, name) for name in STATISTICS[kind])
    if len(low) != len(high):
        raise ValueError(f"statistics: {key} in {file} has {len(low)} and {len(high)} numbers; they must agree")
    width = len(low) if names is None else min(len(names), len(low))
    low, high = low[:width], high[:width]
    if kind == "pi0":
        return MeanStd(mean=low, std=high, eps=EPS, inverse_eps=EPS, dtype=np.float64), width
    return Range(low=low, span=high - low + EPS, dtype=np.float64), width


def _statistic(file: Path, statistics, key: str, name: str) -> np.ndarray:
    values = np.asarray((statistics.get(key) or {}).get(name) or (), dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"statistics: {key}.{name} in {file} must be finite numbers, it is {values.tolist()}")
    return values
