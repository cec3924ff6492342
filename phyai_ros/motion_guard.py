"""What stands between a policy's chunk and the output: limits, the way to a first action, whether the robot follows.

Used by the control thread, except `refuse`, which the inference thread calls, and `report`, which the status does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from phyai_core.approach import approach_rows
from phyai_core.limiter import Limited, Limiter
from phyai_core.tracking import TrackingGuard
from phyai_core.types import Action, ActionChunk, Command, Fault, FloatArray, InferenceRequest, Reason
from phyai_ros.chunk_guard import ChunkGuard
from phyai_ros.settings import Start

REMEMBERED_S = 0.4  # how far an arm may lag behind before the distance to its command counts
MOST_APPROACHES = 3  # a policy that always plans to start elsewhere is not followed for ever


@dataclass(frozen=True)
class LimitReport:
    """What the limiter has done since activation; `slowdown` is that of the running chunk."""

    text: str = ""
    slowdown: float = 1.0
    chunks: int = 0
    by_joint: tuple[int, ...] = ()


class MotionGuard:
    """One per session; `limiter` None: chunks are taken as they are or refused by `chunks`."""

    def __init__(
        self, chunks: ChunkGuard, limiter: Limiter | None, tracking: TrackingGuard, start: Start, dt_s: float
    ) -> None:
        self._chunks, self._limiter, self._tracking = chunks, limiter, tracking
        self._start, self._dt_s = start, dt_s
        self._memory: deque[tuple[int, FloatArray]] = deque(maxlen=max(4, round(REMEMBERED_S / dt_s)))
        self._joints = len(chunks.limits.names)
        self.begin()

    def begin(self) -> None:
        """A new activation."""
        self._memory.clear()
        self._tracking.clear()
        self._target: tuple[int, FloatArray] | None = None  # epoch of the chunk, and its first row
        self._epoch = 0
        self._approach: tuple[ActionChunk, int] | None = None  # rows on the way, and the next one
        self._approaches = 0
        self.following_error: FloatArray | None = None
        self.report = LimitReport(by_joint=(0,) * self._joints)

    # --- chunks -------------------------------------------------------------------------------------------------------

    def refuse(self, chunk: ActionChunk, request: InferenceRequest) -> Fault | None:
        """The executor's guard. In ramp mode a first action within reach becomes the target of an approach."""
        fault = self._chunks(chunk, request)
        far = fault is not None and fault.reason is Reason.START_TOO_FAR and request.epoch == self._epoch
        if not far or self._start.mode != "ramp" or self._approaches >= MOST_APPROACHES:
            return fault
        distance = np.abs(chunk.actions[0] - request.obs.measured)
        if distance.max() > self._start.ramp_limit_rad:
            limit = f"and further than start.ramp_limit_rad ({self._start.ramp_limit_rad:g})"
            return Fault(fault.reason, f"{fault.text}, {limit}")
        if self._approach is None:
            self._target = (request.epoch, chunk.actions[0])
        return Fault(Reason.APPROACH, "going to the first action")

    def fit(self, chunk: ActionChunk, entry: int, tick: int) -> ActionChunk | Fault:
        """The executor's fit: the rows from `entry` on inside the limits, model values at the same places."""
        if self._limiter is None or not self._memory:
            return chunk
        before = [position for k, position in self._memory if tick - k < 4]
        limited = self._limiter.fit(chunk.actions[entry:], before or [self._memory[-1][1]])
        if isinstance(limited, str):
            return Fault(Reason.BAD_CHUNK, limited)
        self._approaches = 0
        self._note(limited)
        return _resample(chunk, entry, limited) if limited.changed else chunk

    def _note(self, limited: Limited) -> None:
        old = self.report
        counts = tuple(count + (joint in limited.joints) for joint, count in enumerate(old.by_joint))
        text = "; ".join(limited.reasons) if limited.changed else old.text
        self.report = LimitReport(text, limited.slowdown, old.chunks + limited.changed, counts)

    # --- ticks --------------------------------------------------------------------------------------------------------

    def remember(self, tick: int, position: FloatArray) -> None:
        """Where the output has been told to be at the instant of `tick`."""
        self._memory.append((tick, position))

    def forget(self) -> None:
        """The robot has been told nothing lately: it is elsewhere, or at rest."""
        self._memory.clear()
        self._tracking.clear()
        self._approach = None

    def check_following(self, now_ns: int, measured: FloatArray, effort: FloatArray | None) -> Fault | None:
        """Whether the robot is where it was told to be."""
        if not self._memory:
            return None
        commands = np.array([position for _, position in self._memory])
        self.following_error = commands[-1] - measured
        return self._tracking.check(now_ns, commands, measured, effort)

    def steer(self, command: Command, position: FloatArray | None, may_move: bool) -> Command:
        """The command of this tick, or the next row of an approach. `position`: where the output rests, if it does."""
        self._epoch = command.epoch
        if not may_move:
            self._approach = self._target = None
            return command
        target = self._target
        if target is not None and position is not None:
            self._target = None
            if target[0] == command.epoch:
                self._begin_approach(command, position, target[1])
        if self._approach is None:
            return command
        chunk, index = self._approach
        self._approach = (chunk, index + 1) if index + 1 < len(chunk.actions) else None
        row, text = chunk.actions[index], "going to the first action"
        return replace(command, action=Action.RUN, reason=Reason.APPROACH, text=text, row=row, chunk=chunk, index=index)

    @property
    def on_the_way(self) -> bool:
        """An approach is under way."""
        return self._approach is not None

    def _begin_approach(self, command: Command, position: FloatArray, target: FloatArray) -> None:
        limits = self._chunks.limits
        speed = np.minimum(limits.velocity, self._start.ramp_velocity)
        rows = approach_rows(position.astype(float), target, speed, limits.acceleration, limits.jerk, self._dt_s)
        chunk = ActionChunk(command.epoch, -1 - self._approaches, command.tick, 0, rows, rows, round(self._dt_s * 1e9))
        self._approaches += 1
        self._approach = (chunk, 0)


def _resample(chunk: ActionChunk, entry: int, limited: Limited) -> ActionChunk:
    """The chunk with limited rows from `entry` on, and the model's values taken from the same places."""
    actions, latent = chunk.actions.copy(), chunk.latent.copy()
    tail = chunk.latent[entry:]
    places = np.clip(limited.places, 0.0, len(tail) - 1.0)
    before = places.astype(int)
    share = (places - before)[:, None].astype(latent.dtype)
    actions[entry:] = limited.rows
    latent[entry:] = tail[before] * (1 - share) + tail[np.minimum(before + 1, len(tail) - 1)] * share
    return replace(chunk, actions=actions, latent=latent)
