"""What a checkpoint of Cosmos3 in the layout of diffusers says, and what NVIDIA's policy server adds for DROID.

transformer/      config.json and weights, in one file or in shards
vae/              config.json and weights of Wan 2.2
text_tokenizer/   tokenizer.json of Qwen3
scheduler/        scheduler_config.json, read where the options ask for the exported schedule

The server's own settings are the defaults here: 32 actions at 15 Hz, 4 steps of its flow schedule with shift 5,
guidance 3. Source: NVIDIA cosmos-framework, scripts/action_policy_server_robolab.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from phyai_adapters._cosmos3_canvas import SERVER_SIZE
from phyai_adapters._cosmos3_scene import Scene
from phyai_adapters._deployment import Options, read_json
from phyai_adapters._processing import Normaliser
from phyai_adapters._unipc import exported_sigmas, flow_sigmas
from phyai_adapters._wan_vae import FRAMES, PIXELS
from phyai_core.types import CameraSpec, Feature, PolicySpec

DOMAIN = 8  # DROID
JOINTS = 7
WIDTH = JOINTS + 1  # joint positions and the gripper, nothing normalised
CAMERAS = {
    "wrist_image_left": (360, 640),
    "exterior_image_1_left": (180, 320),
    "exterior_image_2_left": (180, 320),
}
NAMES = (*(f"panda_joint{index + 1}" for index in range(JOINTS)), "gripper")
RATE_HZ, HORIZON, STEPS, SHIFT, GUIDANCE = 15.0, 32, 4, 5.0, 3.0


@dataclass(frozen=True)
class Deployment:
    """How one checkpoint is run. `sigmas` [N + 1]: noise levels of the steps."""

    layout: str
    action_horizon: int
    rate_hz: float
    history: int  # rows of past states before the present one
    video_size: tuple[int, int]  # pixels
    sigmas: Tensor
    guidance: float
    json_prompt: bool
    state_names: Sequence[str]
    action_names: Sequence[str]
    state: Normaliser = field(default_factory=Normaliser)
    action: Normaliser = field(default_factory=Normaliser)

    def scene(self, patch: int) -> Scene:
        """What one sample is made of: the first frame and the rows up to the present state are given."""
        height, width = (pixels // PIXELS for pixels in self.video_size)
        return Scene(
            grid=(1 + self.action_horizon // FRAMES, -(-height // patch), -(-width // patch)),
            rows=self.history + 1 + self.action_horizon,
            domain=DOMAIN,
            fps=self.rate_hz,
            first_row=-self.history,
            clean_frames=1,
            clean_rows=self.history + 1,
        )

    def spec(self, channels: int) -> PolicySpec:
        """As executed on the robot. The noise of the video comes in rows behind that of the actions."""
        height, width = (pixels // PIXELS for pixels in self.video_size)
        pixels = channels * self.action_horizon // FRAMES * height * width
        return PolicySpec(
            name="cosmos3",
            action_horizon=self.action_horizon,
            dt_s=1.0 / self.rate_hz,
            cameras=tuple(CameraSpec(key, *size) for key, size in CAMERAS.items()),
            state=_features(self.state_names),
            action=_features(self.action_names),
            latent_dim=WIDTH,
            branches=1 if self.guidance == 1.0 else 2,
            rtc_modes=("none", "hard"),
            observation_steps=self.history + 1,
            noise_rows=self.action_horizon + -(-pixels // WIDTH),
        )


def _features(names: Sequence[str]) -> tuple[Feature, ...]:
    return (*(Feature(name) for name in names[:-1]), Feature(names[-1], unit="1"))


def read_deployment(folder: Path | None, options: Options) -> Deployment:
    """From the options, and from `scheduler/` where they ask for it. Raises ValueError naming the option at fault."""
    horizon, size = options.action_horizon or HORIZON, tuple(options.video_size or SERVER_SIZE)
    if horizon % FRAMES:
        raise ValueError(
            f"action_horizon: {horizon} given; allowed are multiples of {FRAMES}, the frames of one latent"
        )
    if len(size) != 2 or any(pixels < PIXELS or pixels % PIXELS for pixels in size):
        raise ValueError(f"video_size: {list(size)} given; allowed are [height, width] in multiples of {PIXELS}")
    for name, given in (("state_names", options.state_names), ("action_names", options.action_names)):
        if given is not None and len(given) != WIDTH:
            raise ValueError(f"{name}: {len(given)} names given, wanted are {WIDTH}: {', '.join(NAMES)}")
    return Deployment(
        layout="diffusers",
        action_horizon=horizon,
        rate_hz=options.rate_hz or RATE_HZ,
        history=options.history,
        video_size=size,
        sigmas=_read_sigmas(folder, options),
        guidance=GUIDANCE if options.guidance is None else options.guidance,
        json_prompt=options.prompt_format == "json",
        state_names=options.state_names or NAMES,
        action_names=options.action_names or NAMES,
    )


def _read_sigmas(folder: Path | None, options: Options) -> Tensor:
    steps = options.num_denoise_steps or STEPS
    if options.schedule != "exported":
        return flow_sigmas(steps, SHIFT if options.flow_shift is None else options.flow_shift)
    file = Path(folder or "") / "scheduler" / "scheduler_config.json"
    config = read_json(file)
    if options.flow_shift is not None:
        config = {**config, "use_karras_sigmas": False, "use_flow_sigmas": True, "flow_shift": options.flow_shift}
    try:
        return exported_sigmas(config, steps)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
