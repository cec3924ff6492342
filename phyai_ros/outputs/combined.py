"""Several controllers driven by one policy, as an arm and a gripper: each takes its columns of every chunk.

Nothing is sent before every part has taken its share of the tick; then all messages go out in one burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import Action, ActionChunk, Command, Fault, Reason
from phyai_ros.outputs.base import Array, Output, OutputConfig, Reference


@dataclass
class Part:
    """One controller: its parameter group, its columns [Ap] of the policy's actions, what it wants to send."""

    name: str
    columns: NDArray[np.intp]
    output: Output
    outbox: list[Any] = field(default_factory=list)


class CombinedOutput(Output):
    """The outputs of `parts` as one. Each part has been made with its own `outbox.append` as publish."""

    name = "combined"
    default_topic = ""

    def __init__(self, config: OutputConfig, parts: Sequence[Part], send: Sequence[Any]) -> None:
        """`send` [parts] are the channels' send methods. ValueError for parts whose clocks do not go together."""
        super().__init__(config, publish=lambda message: None)
        self.parts, self._send = tuple(parts), tuple(send)
        self.self_advancing = _common_clock(self.parts)
        self.sub_ticks = max(part.output.sub_ticks for part in self.parts)
        self._shares: tuple[ActionChunk, tuple[ActionChunk, ...]] | None = None

    @classmethod
    def load_type(cls) -> type:
        raise TypeError("a combined output has no message of its own")

    def start(self, position: Array, stamp_ns: int) -> None:
        for part in self.parts:
            part.output.start(np.asarray(position)[part.columns], stamp_ns)

    def update(self, command: Command, stamp_ns: int) -> Fault | None:
        if command.action is Action.RUN and not np.isfinite(command.chunk.actions[command.index :]).all():
            return Fault(Reason.BAD_CHUNK, "the chunk holds a number that is not finite")  # before any part moves on
        faults = [part.output.update(self._share(command, i), stamp_ns) for i, part in enumerate(self.parts)]
        self._flush()
        return next((fault for fault in faults if fault is not None), None)

    def interpolate(self, fraction: float, stamp_ns: int) -> None:
        """Parts with fewer sub-ticks than the fastest take theirs when they are due."""
        index = round(fraction * self.sub_ticks)
        for part in self.parts:
            wanted = part.output.sub_ticks
            if index * wanted // self.sub_ticks > (index - 1) * wanted // self.sub_ticks:
                part.output.interpolate(fraction, stamp_ns)
        self._flush()

    def reference_at(self, tick: int) -> Reference:
        size = len(self.config.joint_names)
        position, velocity = np.empty(size), np.empty(size)
        for part in self.parts:
            reference = part.output.reference_at(tick)
            position[part.columns], velocity[part.columns] = reference.position, reference.velocity
        return Reference(position, velocity)

    @property
    def at_rest(self) -> bool:
        return all(part.output.at_rest for part in self.parts)

    def take_fault(self) -> Fault | None:
        faults = [part.output.take_fault() for part in self.parts]
        return next((fault for fault in faults if fault is not None), None)

    def close(self) -> None:
        for part in self.parts:
            part.output.close()

    def _share(self, command: Command, i: int) -> Command:
        if command.chunk is None:
            return command
        if self._shares is None or self._shares[0] is not command.chunk:
            shares = tuple(
                replace(command.chunk, actions=command.chunk.actions[:, part.columns]) for part in self.parts
            )
            self._shares = (command.chunk, shares)
        return replace(command, chunk=self._shares[1][i], row=command.row[self.parts[i].columns])

    def _flush(self) -> None:
        for part, send in zip(self.parts, self._send, strict=True):
            for message in part.outbox:
                send(message)
            part.outbox.clear()


def _common_clock(parts: Sequence[Part]) -> bool:
    clocks = {part.output.self_advancing for part in parts if not part.output.any_clock}
    if len(clocks) > 1:
        kinds = ", ".join(f"{part.name} ({part.output.name})" for part in parts)
        raise ValueError(
            f"outputs.keys: {kinds} cannot be combined, because trajectories go on through a stall of this node and "
            "streamed commands do not; use trajectories for all joints, or streamed commands for all."
        )
    return clocks.pop() if clocks else False
