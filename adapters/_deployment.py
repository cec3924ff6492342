"""What runs around the network of one checkpoint: sizes of the task, cameras, statistics, and what the user must add.

A checkpoint does not say everything. The rest comes from `phyai.json` beside it, whose keys are the fields of Options.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phyai_adapters._processing import Normaliser
from phyai_adapters._tokenizers import Tokenizer
from phyai_core.layers.rotary import INV_FREQ
from phyai_core.types import CameraSpec, Feature, PolicySpec

OPTIONS_FILE = "phyai.json"
CHOICES = {
    "dtype": ("float32", "bfloat16"),
    "vision_dtype": ("float32", "bfloat16"),
    "rope_inv_freq": INV_FREQ,
    "schedule": ("server", "exported"),
    "prompt_format": ("text", "json"),
}
RTC_MODES = ("none", "identity", "fd", "fd_lagged", "hard", "ramp")


@dataclass(frozen=True)
class Options:
    """Choices for one deployment. None: what the checkpoint says, or an error where it does not say."""

    rate_hz: float | None = None  # rate of the actions the policy was trained on
    tokenizer: str | Tokenizer | None = None  # file beside the checkpoint or path, "bytes", or an object
    cameras: Sequence[str] | None = None  # the cameras there are; the others count as absent
    # {camera: [h, w]}: its frames always have this size and are resized on the device. Other cameras: any size, resized
    # on the host (0.3 ms a frame of 480 x 640 in lerobot's way, 1.2 ms in openpi's, which uses Pillow).
    frame_sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    state_names: Sequence[str] | None = None
    action_names: Sequence[str] | None = None
    statistics: str | None = None  # file with normalisation statistics, instead of the checkpoint's own
    asset_id: str | None = None  # openpi: which folder under assets/
    # Ids of the tokens round an image, where the tokenizer does not know them by name. SmolVLA: around, before; GR00T:
    # before, of the image, behind; Cosmos3: end of the text, before the video;
    # MiniCPM: before, behind.
    image_tokens: Sequence[int] | None = None
    embodiment: str | None = None  # GR00T, MiniCPM: which of the robots that the checkpoint knows
    action_head: str | None = None  # MiniCPM: "<file>.py:<class>" or "<module>:<class>"; None: the reference head
    delta_mask: Sequence[int] = ()  # openpi: 6, -1 means six dims relative to the state, then one absolute
    state_in_prompt: bool = True  # pi0.5: False for checkpoints trained with discrete_state_input=False
    action_horizon: int | None = None
    num_denoise_steps: int | None = None
    prompt_buckets: Sequence[int] = (48, 112, 200)  # padded prompt lengths, up to the trained maximum
    dtype: str | None = None  # of the matrices: float32 or bfloat16; None: bfloat16 on CUDA, float32 elsewhere
    vision_dtype: str | None = None  # None: as dtype
    fp8_prefix: bool = False  # large products of the prefix in FP8, weights rounded when loaded
    rope_inv_freq: str = "float32"  # or bf16_roundtrip, see phyai_core.layers.rotary
    # Cosmos3. None: as NVIDIA's policy server runs it.
    video_size: Sequence[int] | None = None  # [height, width] of the predicted video, pixels
    history: int = 0  # past states that the policy sees beside the present one
    guidance: float | None = None  # how far the prompt is followed beyond its likelihood; 1 halves the work
    schedule: str | None = None  # of the noise levels: server, or exported (scheduler/scheduler_config.json)
    flow_shift: float | None = None
    prompt_format: str | None = None  # text, or json
    video_decoder: bool = False  # load it too, to look at predicted videos

    def __post_init__(self):
        if self.rate_hz is not None and not 0.1 <= self.rate_hz <= 1000:
            raise ValueError(f"rate_hz: {self.rate_hz} is out of range; allowed: 0.1 to 1000 Hz")
        for name in ("action_horizon", "num_denoise_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}: {value} is too small; allowed: 1 and more")
        if self.history < 0:
            raise ValueError(f"history: {self.history} is too small; allowed: 0 and more")
        for name in ("guidance", "flow_shift"):
            if (value := getattr(self, name)) is not None and not 0 < value < 100:
                raise ValueError(f"{name}: {value} is out of range; allowed: above 0, below 100")
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) is not None and value not in allowed:
                raise ValueError(f"{name}: {value!r} is unknown; allowed: {', '.join(allowed)}")


def read_options(folder: Path) -> Options:
    """The options in `phyai.json` of the checkpoint folder; defaults without such a file."""
    file = folder / OPTIONS_FILE
    if not file.is_file():
        return Options()
    values = read_json(file)
    allowed = [entry.name for entry in fields(Options)]
    if unknown := sorted(set(values) - set(allowed)):
        raise ValueError(f"{file}: {', '.join(unknown)} unknown; allowed: {', '.join(allowed)}")
    try:
        return Options(**values)
    except TypeError as error:
        raise ValueError(f"{file}: a value has the wrong type ({error})") from None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError naming the file."""
    if not file.is_file():
        raise ValueError(f"checkpoint: {file} does not exist")
    try:
        content = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"checkpoint: {file} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint: {file} holds no JSON object")
    return content


@dataclass(frozen=True)
class Deployment:
    """The facts of one checkpoint, read from its files and completed by Options."""

    kind: str  # pi0 or pi05
    layout: str  # lerobot or openpi
    action_horizon: int
    num_denoise_steps: int
    prompt_tokens: int  # longest prompt in training
    image_size: int
    cameras: Mapping[str, tuple[int, int]]  # {key: (h, w)} as in training, or as declared in Options
    state: Normaliser
    action: Normaliser
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    relative: NDArray[np.bool_]  # [A] True: this action dim is relative to the state
    images: Mapping[str, Normaliser] = field(default_factory=dict)  # per camera, over the colours
    rtc_max_delay: int = 0
    periods: tuple[float, float] = (4e-3, 4.0)  # shortest and longest of the time features, in flow time

    def choose(self, options: Options) -> Deployment:
        """With the cameras, horizon, steps and names of `options`. Raises ValueError naming what does not fit."""
        present = [key for key in self.cameras if options.cameras is None or key in options.cameras]
        for name, keys in (("cameras", options.cameras or ()), ("frame_sizes", options.frame_sizes)):
            if unknown := sorted(set(keys) - set(self.cameras)):
                raise ValueError(f"{name}: {', '.join(unknown)} unknown; the policy has {', '.join(self.cameras)}")
        if not present:
            raise ValueError(f"cameras: none chosen; choose at least one of {', '.join(self.cameras)}")
        if self.relative.nonzero()[0].max(initial=-1) >= len(self.state_names):
            raise ValueError(
                f"actions: {int(self.relative.sum())} are relative to the state, which has only "
                f"{len(self.state_names)} values; the checkpoint's processor files contradict its config.json"
            )
        return replace(
            self,
            cameras={key: tuple(options.frame_sizes.get(key, self.cameras[key])) for key in present},
            action_horizon=options.action_horizon or self.action_horizon,
            num_denoise_steps=options.num_denoise_steps or self.num_denoise_steps,
            state_names=_rename("state_names", self.state_names, options.state_names),
            action_names=_rename("action_names", self.action_names, options.action_names),
        )

    def spec(self, latent_dim: int, rate_hz: float | None, folder: Path | None = None) -> PolicySpec:
        """The policy's spec. Raises ValueError when nobody said at which rate actions are meant to be executed."""
        if rate_hz is None:
            raise ValueError(
                f"rate_hz: {folder} does not say at which rate its actions were recorded, and a wrong rate moves the "
                f'robot too fast or too slow. Write {{"rate_hz": <Hz>}} into {OPTIONS_FILE} beside the checkpoint'
            )
        modes = ["relative" if flag else "absolute" for flag in self.relative]
        return PolicySpec(
            name=self.kind,
            action_horizon=self.action_horizon,
            dt_s=1.0 / rate_hz,
            cameras=tuple(CameraSpec(key, height, width) for key, (height, width) in self.cameras.items()),
            state=tuple(Feature(name) for name in self.state_names),
            action=tuple(Feature(name, mode=mode) for name, mode in zip(self.action_names, modes, strict=True)),
            latent_dim=latent_dim,
            num_denoise_steps=self.num_denoise_steps,
            rtc_modes=self._rtc_modes,
            rtc_max_delay=self.rtc_max_delay,
        )

    @property
    def _rtc_modes(self) -> tuple[str, ...]:
        """Guiding a chunk takes denoise steps of a flow."""
        if not self.num_denoise_steps:
            return ("none",)
        return (*RTC_MODES, "trained") if self.rtc_max_delay else RTC_MODES


def choose_dtypes(options: Options, device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """Of the matrices, and of the network that sees."""
    name = options.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    return getattr(torch, name), getattr(torch, options.vision_dtype or name)


def refuse_options(options: Options, kind: str, allowed: Collection[str]) -> None:
    """Raise ValueError for options that were set and mean nothing to this kind of policy."""
    plain = Options()
    given = [entry.name for entry in fields(Options) if getattr(options, entry.name) != getattr(plain, entry.name)]
    if wrong := sorted(set(given) - set(allowed)):
        raise ValueError(f"{OPTIONS_FILE}: {', '.join(wrong)} has no meaning for {kind}; allowed: {', '.join(allowed)}")


def _rename(name: str, default: tuple[str, ...], names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return default
    if len(names) != len(default):
        raise ValueError(f"{name}: {len(names)} names given, the checkpoint has {len(default)} values")
    return tuple(names)
