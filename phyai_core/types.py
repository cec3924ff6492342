"""The nouns that every part of phyai_ros shares. No torch, no ROS: numpy arrays and plain values.

Times ending in `_stamp_ns` are ROS time, other `_ns` are steady (monotonic) time, both integer nanoseconds.
Letters in shapes: H action horizon, A action dims of the robot, A' action dims of the model, S state dims, h w image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Feature:
    """One scalar of a state or action vector.

    `name` is the joint (or other channel) it belongs to, `kind` one of position, velocity, effort, command,
    `unit` an SI unit by REP-103 (rad, rad/s, m, ...), `mode` absolute or relative (to the state at the observation).
    """

    name: str
    kind: str = "position"
    unit: str = "rad"
    mode: str = "absolute"


@dataclass(frozen=True)
class CameraSpec:
    """A camera the policy wants: the model's `key` and the image size it was trained on, in pixels."""

    key: str
    height: int
    width: int


@dataclass(frozen=True)
class CloudSpec:
    """A point cloud the policy wants: its `key`, the most points it takes, and the fields of each point."""

    key: str
    max_points: int
    fields: tuple[str, ...] = ("x", "y", "z")


@dataclass(frozen=True)
class PolicySpec:
    """What a policy consumes and produces; the one source of H, A, dt and of every name and unit."""

    name: str
    action_horizon: int  # H
    dt_s: float  # control period of policy actions
    cameras: tuple[CameraSpec, ...]
    state: tuple[Feature, ...]  # S entries
    action: tuple[Feature, ...]  # A entries
    latent_dim: int  # A', action dims of the model, padding included
    num_denoise_steps: int = 0  # 0: not a flow policy
    branches: int = 1  # 2 with classifier-free guidance
    rtc_modes: tuple[str, ...] = ("none",)
    rtc_max_delay: int = 0  # ticks; > 0 for checkpoints trained for RTC
    observation_steps: int = 1  # observations it looks at, dt apart, the newest included
    clouds: tuple[CloudSpec, ...] = ()
    noise_rows: int = 0  # rows of standard normal noise that a prediction draws on; 0: H

    @property
    def noise_shape(self) -> tuple[int, int]:
        """Of the noise that one chunk starts from, [rows, A']."""
        return (self.noise_rows or self.action_horizon, self.latent_dim)

    @property
    def action_dim(self) -> int:
        return len(self.action)

    @property
    def state_dim(self) -> int:
        return len(self.state)


@dataclass(frozen=True)
class Source:
    """One sample that an observation used, with the times of its way to us."""

    name: str
    stamp_ns: int  # header stamp, ROS time
    arrival_ns: int  # in our callback, steady time
    arrival_tick: int
    arrival_stamp_ns: int = 0  # the same instant in ROS time; 0: unknown
    published_stamp_ns: int = 0  # when the publisher handed it to the middleware, ROS time; 0: unknown


@dataclass(frozen=True)
class Observation:
    """What the policy sees at one launch. `stamp_ns` is the stamp of the oldest sample used."""

    stamp_ns: int
    images: Mapping[str, NDArray[np.uint8]]  # {camera key: RGB [h, w, 3]}
    state: FloatArray  # [S]
    last_command: FloatArray  # [A], the row emitted last (or the measured pose before the first)
    prompt: str = ""
    sources: tuple[Source, ...] = ()
    history: tuple[Observation, ...] = ()  # of the ticks before, oldest first; fewer than asked for after a reset
    clouds: Mapping[str, FloatArray] = field(default_factory=dict)  # {cloud key: points [N, F]}, N <= max_points
    epoch: int = -1  # of the request; policies that remember forget where it changes


@dataclass(frozen=True)
class Leftover:
    """What the running chunk still holds from the launch tick on; row 0 belongs to the launch tick itself.

    `latent` [V, A'] is in model units as sampled; `actions` [V, A] in robot units as emitted (after safety).
    `delay` is the forecast d in ticks, `execution_horizon` the s of the running chunk: rows behind the launch.
    """

    latent: FloatArray
    actions: FloatArray
    delay: int
    execution_horizon: int

    def __len__(self) -> int:
        return len(self.latent)


@dataclass(frozen=True)
class InferenceRequest:
    """The atomic snapshot taken in the launch tick. `obs` is whatever the tick was given (decoded later)."""

    epoch: int
    seq: int
    base_tick: int
    launch_ns: int
    obs: Any
    leftover: Leftover | None  # None: first chunk of an epoch, or no overlap
    delay_forecast: int


@dataclass(frozen=True)
class ActionChunk:
    """H actions from one inference, in both tracks under one index. Row i belongs to tick base_tick + i."""

    epoch: int
    seq: int
    base_tick: int
    obs_stamp_ns: int
    actions: FloatArray  # [H, A] robot units
    latent: FloatArray  # [H, A'] model units
    dt_ns: int
    sources: tuple[Source, ...] = ()
    stages_s: Mapping[str, float] = field(default_factory=dict)  # seconds per inference stage, measured


class Action(Enum):
    """What one tick asks the outputs to do."""

    RUN = "run"  # execute `row`
    HOLD = "hold"  # come to rest inside the limits and keep the reference; inference goes on
    STOP = "stop"  # braking stop, then silence until a fresh epoch produces a chunk
    NONE = "none"  # nothing to command yet (no chunk in this epoch)


class Reason(str, Enum):
    """Why the executor or the node does what it does. The value is the wire code."""

    OK = "ok"
    INACTIVE = "inactive"
    DISABLED = "disabled"
    WAITING_INPUT = "waiting_input"
    FIRST_CHUNK = "waiting_first_chunk"
    SYNC_WAIT = "sync_wait"
    STARVED = "starved"
    INPUT_MISSING = "input_missing"
    INPUT_STALE = "input_stale"
    INPUT_FROZEN = "input_frozen"
    INPUT_CLOCK = "input_clock"
    INPUT_INVALID = "input_invalid"
    BAD_CHUNK = "bad_chunk"
    POLICY_ERROR = "policy_error"
    START_TOO_FAR = "start_too_far"
    RESET = "reset"
    CLOCK_JUMP = "clock_jump"
    PAUSED = "paused"
    ESTOP = "estop"
    NOT_OWNER = "not_owner"  # the controller is not active, or another's
    CONTROLLER = "controller"  # the controller refused or aborted what it was sent
    FOLLOWING_ERROR = "following_error"
    STALLED = "stalled"
    APPROACH = "approach"  # moving to the first action
    COLLISION = "collision"
    INTERNAL = "internal_error"


@dataclass(frozen=True)
class Fault:
    """An input or policy fault seen at a tick: a code for machines, a sentence for people."""

    reason: Reason
    text: str


@dataclass(frozen=True)
class Adoption:
    """How a chunk was swapped in: what ControlTiming needs of the tick that did it."""

    request: InferenceRequest
    ready_ns: int  # steady time at which the chunk was delivered
    entry_row: int
    delay_counted: int  # ticks from launch to adoption
    execution_horizon: int  # ticks between this launch and the one before; 0 for the first of an epoch
    queue_left: int  # rows of the old chunk that were still to come
    seam: float  # largest absolute second difference over the joints at the swap; NaN without two rows before


@dataclass(frozen=True)
class Command:
    """Exactly one per tick."""

    action: Action
    tick: int
    epoch: int
    reason: Reason = Reason.OK
    text: str = ""
    row: FloatArray | None = None  # [A] robot units, set iff action is RUN
    chunk: ActionChunk | None = None  # the chunk `row` comes from
    index: int = -1  # row index in `chunk`
    adoption: Adoption | None = None  # set in the tick that swapped `chunk` in (index is its entry row)

    @property
    def adopted(self) -> bool:
        return self.adoption is not None
