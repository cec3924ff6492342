"""Checkpoint folders as lerobot's save_pretrained writes them: config.json, policy_*processor.json, state files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phyai_adapters._deployment import Deployment, Options, read_json
from phyai_adapters._processing import MeanStd, Normaliser, Range
from phyai_core.weights import Checkpoint

# Every step whose effect this package reproduces; another step would change the policy's inputs unseen.
STEPS = {
    "rename_observations_processor",
    "to_batch_processor",
    "device_processor",
    "normalizer_processor",
    "unnormalizer_processor",
    "relative_actions_processor",
    "absolute_actions_processor",
    "tokenizer_processor",
    "pi0_new_line_processor",
    "smolvla_new_line_processor",
    "pi05_prepare_state_tokenizer_processor_step",
}
STATISTICS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
    "IDENTITY": (),
}
FEATURES = {"observation.state": "STATE", "action": "ACTION"}
OBSERVATION = "observation."
IMAGES = OBSERVATION + "images."
FIX = 'take the statistics of the fine-tuning data set and write {"statistics": "<file>"} into phyai.json'


class Keys(NamedTuple):
    """Where the config.json of a kind of policy says what; None: policies of this kind have no such thing."""

    horizon: str = "chunk_size"
    denoise_steps: str | None = "num_inference_steps"
    image_size: str | None = "image_resolution"
    prompt: bool = True
    periods: bool = True  # of the time features


KINDS = {
    "pi0": Keys(),
    "pi05": Keys(),
    "smolvla": Keys(denoise_steps="num_steps", image_size="resize_imgs_with_padding"),
    "diffusion": Keys(horizon="horizon", denoise_steps=None, image_size=None, prompt=False, periods=False),
    "act": Keys(denoise_steps=None, image_size=None, prompt=False, periods=False),
}


def is_lerobot(folder: Path) -> bool:
    """True when the folder's config.json names a policy type."""
    file = folder / "config.json"
    return file.is_file() and "type" in read_json(file)


def read_lerobot(folder: Path, options: Options) -> Deployment:
    """The deployment in a lerobot checkpoint folder. Raises ValueError naming the file and the entry."""
    config_file = folder / "config.json"
    config = read_json(config_file)
    keys = KINDS[config["type"]]
    before, after = _read_steps(folder)
    state, action = (_width(config_file, config, feature) for feature in FEATURES)
    cameras = _cameras(config)
    periods = [_entry(config_file, config, name) for name in ("min_period", "max_period") if keys.periods]
    return Deployment(
        kind=config["type"],
        layout="lerobot",
        action_horizon=_entry(config_file, config, keys.horizon),
        num_denoise_steps=_entry(config_file, config, keys.denoise_steps) if keys.denoise_steps else 0,
        prompt_tokens=before.config("tokenizer_processor")["max_length"] if keys.prompt else 0,
        image_size=_entry(config_file, config, keys.image_size)[0] if keys.image_size else 0,
        cameras={camera_key(feature): size for feature, size in cameras.items()},
        images={camera_key(name): _normaliser(before, "normalizer_processor", name, 3, options) for name in cameras},
        state=_normaliser(before, "normalizer_processor", "observation.state", state, options),
        action=_normaliser(after, "unnormalizer_processor", "action", action, options),
        state_names=tuple(f"state_{index}" for index in range(state)),
        action_names=tuple(config.get("action_feature_names") or (f"action_{index}" for index in range(action))),
        relative=_relative(before, action),
        rtc_max_delay=config.get("rtc_training_max_delay") or 0,
        periods=tuple(periods) or Deployment.periods,
    )


def read_config(folder: Path, kind: str) -> dict[str, Any]:
    """The config.json of a policy of this kind. Raises ValueError for another kind."""
    if not is_lerobot(folder):
        raise ValueError(f"checkpoint: {folder} has no config.json with a type; {kind} is read in lerobot's layout")
    config = read_json(folder / "config.json")
    if config["type"] != kind:
        raise ValueError(f"adapter: {folder} is a {config['type']} checkpoint; use that adapter, not {kind}")
    return config


def require(config: Mapping[str, Any], folder: Path, **allowed: tuple[Any, ...]) -> None:
    """Raise ValueError where an entry of config.json asks for a variant that is not built here."""
    for name, values in allowed.items():
        if (found := config.get(name, values[0])) not in values:
            raise ValueError(
                f"{folder / 'config.json'}: {name} is {found!r}; supported: {', '.join(map(repr, values))}"
            )


def camera_key(feature: str) -> str:
    """observation.images.top -> top, observation.image -> image."""
    return feature.removeprefix(IMAGES).removeprefix(OBSERVATION)


def _read_steps(folder: Path) -> tuple[_Steps, _Steps]:
    """Pre- and postprocessor. Raises ValueError for folders of the time before there were any."""
    files = [folder / f"policy_{name}processor.json" for name in ("pre", "post")]
    if not any(file.is_file() for file in files):
        raise ValueError(
            f"checkpoint: {folder} has no policy_preprocessor.json: it was saved by lerobot before 0.4, which kept the "
            "statistics among the weights. Convert it with lerobot 0.4 or newer: "
            "python -m lerobot.processor.migrate_policy_normalization --pretrained-path <folder>"
        )
    before, after = (_Steps(file) for file in files)
    return before, after


class _Steps:
    """The steps of one processor file by registry name."""

    def __init__(self, file: Path):
        self.file = file
        self.steps = {step.get("registry_name", step.get("class", "?")): step for step in read_json(file)["steps"]}
        if unknown := sorted(set(self.steps) - STEPS):
            raise ValueError(f"{file}: the step {', '.join(unknown)} is unknown; known: {', '.join(sorted(STEPS))}")

    def config(self, name: str) -> Mapping[str, Any]:
        """The configuration of the step `name`."""
        if name not in self.steps:
            raise ValueError(f"{self.file}: the step {name} is missing; save the checkpoint with its processors")
        return self.steps[name]["config"]

    def state_file(self, name: str) -> Path:
        """The file with the step's tensors; its number differs between policies and versions."""
        self.config(name)
        return self.file.parent / self.steps[name].get("state_file", f"(no state_file in {self.file.name})")


def _entry(file: Path, config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        raise ValueError(f"{file}: {name} is missing; it was written by another version, or is not of this policy")
    return config[name]


def _width(file: Path, config: Mapping[str, Any], feature: str) -> int:
    """Length of the state or action vector; 0 for a policy without state."""
    features = {**_entry(file, config, "input_features"), **_entry(file, config, "output_features")}
    return features.get(feature, {"shape": [0]})["shape"][0]


def _cameras(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """{feature: (h, w)}; `empty_camera_i` slots are absent by definition and have no effect."""
    visual = {key: entry["shape"] for key, entry in config["input_features"].items() if entry["type"] == "VISUAL"}
    sizes = {key: (shape[1], shape[2]) for key, shape in visual.items()}
    return {key: size for key, size in sizes.items() if not camera_key(key).startswith("empty_camera_")}


def _relative(steps: _Steps, width: int) -> np.ndarray:
    """[A] True where actions are relative to the state: all, except names that contain an excluded word."""
    config = steps.steps.get("relative_actions_processor", {}).get("config", {})
    if not config.get("enabled", False):
        return np.zeros(width, bool)
    excluded = [word.lower() for word in config.get("exclude_joints") or ()]
    names = config.get("action_names")
    if not excluded or names is None:
        return np.ones(width, bool)
    if len(names) != width:
        raise ValueError(f"{steps.file}: action_names has {len(names)} names, the policy has {width} actions")
    return np.array([not any(word in name.lower() for word in excluded) for name in names])


def _normaliser(steps: _Steps, step: str, feature: str, width: int, options: Options) -> Normaliser:
    config = steps.config(step)
    mode = config["norm_map"].get(FEATURES.get(feature, "VISUAL"), "IDENTITY")
    if mode not in STATISTICS:
        raise ValueError(f"{steps.file}: {mode} of {feature} is unknown; allowed: {', '.join(STATISTICS)}")
    if mode == "IDENTITY" or width == 0:
        return Normaliser()
    file = steps.file.parent / options.statistics if options.statistics else steps.state_file(step)
    low, high = (_statistic(file, f"{feature}.{name}", width) for name in STATISTICS[mode])
    eps = config.get("eps", 1e-8)
    if mode == "MEAN_STD":
        return MeanStd(mean=low, std=high, eps=eps, inverse_eps=0.0)
    span = high - low
    return Range(low=low, span=np.where(span == 0, np.float32(eps), span))


def _statistic(file: Path, name: str, width: int) -> np.ndarray:
    """One statistic [width] float32. A missing one is an error: a guess would drive the robot somewhere else."""
    if not file.is_file():
        raise ValueError(f"statistics: {name} is missing, {file} does not exist; {FIX}")
    checkpoint = Checkpoint(file)
    if name not in checkpoint.shapes:
        raise ValueError(f"statistics: {name} is missing in {file}; {FIX}")
    values = checkpoint.tensor(name).float().flatten().numpy().copy()  # of images they are [3, 1, 1]
    if values.shape != (width,) or not np.isfinite(values).all():
        raise ValueError(f"statistics: {name} in {file} must be {width} finite numbers, it is {values.tolist()}; {FIX}")
    return values
