"""What outputs share that send one message per step to a controller without a plan of its own.

Such a controller neither interpolates nor stops by itself. So these outputs interpolate linearly between rows up to
`output.rate_hz`, and brake before they fall silent. Each value is the target for the end of its own sub-tick, so the
last one of a tick is the row itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from phyai_core.types import Action, Command, Fault, Reason
from phyai_ros.outputs.base import Array, Output, OutputConfig, Reference, check_position
from phyai_ros.outputs.channels import Channel


class StreamingOutput(Output):
    """Advances only when it publishes: after missed ticks it goes on from the value it sent last."""

    self_advancing = False

    def __init__(self, config: OutputConfig, publish: Callable[[Any], None], channel: Channel | None = None) -> None:
        super().__init__(config, publish, channel)
        self.sub_ticks = count_sub_ticks(config.rate_hz, config.dt_s)
        self._sub_dt_s = config.dt_s / self.sub_ticks
        self._brakes = config.brake(self._sub_dt_s)
        self._tick: int | None = None
        self._sent: Array = np.empty(0)  # [A] the value sent last
        self._queue: list[Array] = []  # what the coming sub-ticks send
        self._velocity: Array = np.empty(0)
        self._running = self._holding = False

    @abstractmethod
    def to_message(self, position: Array, velocity: Array, stamp_ns: int) -> Any:
        """One step [A] in the controller's order: where to be at its end, and the mean velocity on the way."""

    def start(self, position: Array, stamp_ns: int) -> None:
        self._sent = check_position(position, len(self.config.joint_names))
        self._velocity = np.zeros_like(self._sent)
        self._tick, self._queue = None, []
        self._running = self._holding = False

    def update(self, command: Command, stamp_ns: int) -> Fault | None:
        if self._tick is not None and command.tick > self._tick + 1:
            self._velocity = np.zeros_like(self._sent)  # nothing was sent meanwhile: the robot has stopped
        self._tick = command.tick
        fault = None
        if command.action is Action.RUN:
            fault = self._aim(command)
        if command.action is not Action.RUN or fault is not None:
            self._brake(hold=fault is not None or command.action is Action.HOLD)
        self._send_next(stamp_ns)
        return fault

    def interpolate(self, fraction: float, stamp_ns: int) -> None:
        self._send_next(stamp_ns)

    def reference_at(self, tick: int) -> Reference:
        return Reference(self._sent, self._velocity)

    @property
    def at_rest(self) -> bool:
        return not self._running and not self._queue

    def _aim(self, command: Command) -> Fault | None:
        row = command.row.astype(float)
        if not np.isfinite(row).all():
            return Fault(Reason.BAD_CHUNK, f"row {command.index} of the chunk holds a number that is not finite")
        steps = np.arange(1, self.sub_ticks + 1)[:, None] / self.sub_ticks
        self._queue = list(self._sent + steps * (row - self._sent))
        self._velocity = (row - self._sent) / self.config.dt_s
        self._running, self._holding = True, False
        return None

    def _brake(self, hold: bool) -> None:
        """On the edge, plan the way to rest; holding then goes on repeating its end."""
        ever_ran = self._running or self._holding or bool(self._queue)
        if self._running:
            positions, _ = self._brakes.tail(self._sent, self._velocity)
            self._queue = list(positions)
        self._running, self._holding = False, hold and ever_ran

    def _send_next(self, stamp_ns: int) -> None:
        due, step = bool(self._queue), np.zeros_like(self._sent)
        if due:
            position = self._queue.pop(0)
            step = position - self._sent
            self._sent = position
        if not self._running:
            self._velocity = step / self._sub_dt_s
        if due or self._holding:
            self._publish(
                self.to_message(self._sent[self.config.order], step[self.config.order] / self._sub_dt_s, stamp_ns)
            )


def count_sub_ticks(rate_hz: float, dt_s: float) -> int:
    """Publications per policy tick that stay at or below `rate_hz` (0: the policy rate). ValueError below that rate."""
    if rate_hz == 0:
        return 1
    sub_ticks = int(rate_hz * dt_s + 1e-9)
    if sub_ticks < 1:
        raise ValueError(
            f"output.rate_hz: {rate_hz:g} is below the policy rate; use 0 (the policy rate)"
            f" or at least {1 / dt_s:g} Hz."
        )
    return sub_ticks
