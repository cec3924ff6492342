"""What a policy node did while a bag was recorded, from its own topics: ticks, launches, latencies, commands.

With it a replay takes the very decisions of the live run: each message is seen at the tick at which the node saw it,
each inference takes as long as it took. What then differs is a difference of the code, the weights or the machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import InferenceRequest
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_types import stamp_of
from phyai_ros.replay.clockwork import NS_PER_S, UniformTicks
from phyai_ros.replay.topics import NodeName

CHUNK, TIMING, COMMAND = "~/chunk", "~/timing", "~/command"


@dataclass(frozen=True)
class Use:
    """A message that an observation used: it was there at tick `arrival_tick` + 1 at the latest."""

    topic: str
    stamp_ns: int
    arrival_tick: int


@dataclass(frozen=True)
class RecordedChunk:
    """One adopted chunk as ~/chunk and ~/timing tell it. `latency_s` is NaN where ~/timing was not recorded."""

    epoch: int
    seq: int
    base_tick: int
    adopt_tick: int
    adopt_ns: int
    uses: tuple[Use, ...]
    latency_s: float
    delay_predicted: int  # ticks; 0 where ~/timing was not recorded
    missed_ticks: int


@dataclass(frozen=True)
class RecordedRun:
    """Chunks in order; commands as ticks [T], stamps [T] and rows [T, A] in the order of `names`."""

    dt_s: float
    chunks: tuple[RecordedChunk, ...]
    names: tuple[str, ...]
    command_ticks: NDArray[np.int64]
    command_ns: NDArray[np.int64]
    command_rows: NDArray[np.float64]

    def latencies_s(self) -> list[float]:
        """The known ones."""
        return [chunk.latency_s for chunk in self.chunks if chunk.latency_s == chunk.latency_s]

    @property
    def first_latency_s(self) -> float:
        """A latency that makes the delay forecast of the node before it had counted any."""
        return max(0.5, self.chunks[0].delay_predicted - 0.5) * self.dt_s


def has_recorded_run(bag: Bag, node: NodeName) -> bool:
    """Whether a policy node's chunks and commands are in the bag."""
    return all((topic := bag.topics.get(node.resolve(name))) and topic.count for name in (CHUNK, COMMAND))


def read_recorded_run(bag: Bag, node: NodeName) -> RecordedRun:
    """Reads the node's topics only. Raises ValueError where they are not in the bag."""
    if not has_recorded_run(bag, node):
        missing = [node.resolve(name) for name in (CHUNK, COMMAND)]
        raise ValueError(
            f"{bag.path} holds no run of a policy node: {' and '.join(missing)} are needed; "
            "record them too, give the node's name (--node), or give another --latency."
        )
    chunk_topic, timing_topic, command_topic = (node.resolve(name) for name in (CHUNK, TIMING, COMMAND))
    chunks, timings, commands = [], {}, []
    for message in bag.messages([chunk_topic, timing_topic, command_topic]):
        if message.topic == chunk_topic:
            chunks.append(message.msg)
        elif message.topic == timing_topic:
            timings[message.msg.seq] = message.msg
        else:
            commands.append(message.msg)
    recorded = tuple(_read_chunk(chunk, timings.get(chunk.seq), node) for chunk in chunks)
    stamps = np.array([stamp_of(command) for command in commands], np.int64)
    return RecordedRun(
        dt_s=float(chunks[0].dt),
        chunks=recorded,
        names=tuple(commands[0].name),
        command_ticks=_number_ticks(stamps, recorded, float(chunks[0].dt)),
        command_ns=stamps,
        command_rows=np.array([command.position for command in commands], np.float64),
    )


def _read_chunk(chunk: Any, timing: Any, node: NodeName) -> RecordedChunk:
    stamps = [stamp.sec * NS_PER_S + stamp.nanosec for stamp in chunk.source_stamps]
    uses = zip(chunk.source_names, stamps, chunk.source_ticks, strict=True)
    return RecordedChunk(
        chunk.epoch,
        chunk.seq,
        chunk.base_tick,
        chunk.adopt_tick,
        stamp_of(chunk),
        tuple(Use(node.resolve(name), stamp_ns, int(tick)) for name, stamp_ns, tick in uses),
        float(timing.l_inference) if timing is not None else float("nan"),
        int(timing.delay_predicted) if timing is not None else 0,
        int(timing.missed_ticks) if timing is not None else 0,
    )


def _number_ticks(stamps: NDArray[np.int64], chunks: Sequence[RecordedChunk], dt_s: float) -> NDArray[np.int64]:
    """The tick of each command, counted from the nearest adoption, whose tick and stamp are known."""
    anchors_ns = np.array([chunk.adopt_ns for chunk in chunks])
    ticks = []
    for stamp_ns in stamps:
        chunk = chunks[int(np.abs(anchors_ns - stamp_ns).argmin())]
        ticks.append(chunk.adopt_tick + round((int(stamp_ns) - chunk.adopt_ns) / (dt_s * NS_PER_S)))
    return np.array(ticks, np.int64)


class RecordedTicks(UniformTicks):
    """The ticks of a live control loop: those with a command at their true instants, the others in between."""

    def __init__(self, run: RecordedRun, start_ns: int) -> None:
        super().__init__(start_ns, round(run.dt_s * NS_PER_S))
        self._known = dict(zip(run.command_ticks.tolist(), run.command_ns.tolist(), strict=True))
        self._sorted = sorted(self._known)
        self._missed = _find_missed(run)
        early = max(0, self._known[self._sorted[0]] - start_ns) // self.period_ns
        self.first = max(0, self._sorted[0] - early)

    def due_ns(self, tick: int) -> int:
        if tick in self._known:
            return self._known[tick]
        place = bisect_left(self._sorted, tick)
        near = self._sorted[min(place, len(self._sorted) - 1)]
        if place and tick - self._sorted[place - 1] < abs(near - tick):
            near = self._sorted[place - 1]
        return self._known[near] + (tick - near) * self.period_ns

    def missed_before(self, tick: int) -> int:
        return self._missed.get(tick, 0)


def _find_missed(run: RecordedRun) -> dict[int, int]:
    """{first missed tick: how many}: gaps in the commands of one epoch, where the node says that it missed ticks."""
    if not any(chunk.missed_ticks for chunk in run.chunks):
        return {}
    adopted = [chunk.adopt_tick for chunk in run.chunks]
    missed = {}
    for before, after in zip(run.command_ticks[:-1].tolist(), run.command_ticks[1:].tolist(), strict=True):
        epochs = {run.chunks[max(0, bisect_left(adopted, tick + 1) - 1)].epoch for tick in (before, after)}
        if after - before > 1 and len(epochs) == 1:
            missed[before + 1] = after - before - 1
    return missed


def recorded_latency(run: RecordedRun, ticks: RecordedTicks):
    """Each inference is ready for the tick that adopted it live; one that was never adopted takes the median time."""
    by_base = {chunk.base_tick: chunk for chunk in run.chunks}
    usual_s = float(np.median(run.latencies_s())) if run.latencies_s() else run.dt_s

    def latency(request: InferenceRequest, measured_s: float) -> float:
        chunk = by_base.get(request.base_tick)
        if chunk is None:
            return usual_s
        earliest_ns, latest_ns = ticks.due_ns(chunk.adopt_tick - 1) + 1, ticks.due_ns(chunk.adopt_tick)
        ready_ns = request.launch_ns + round(np.nan_to_num(chunk.latency_s) * NS_PER_S)
        return (min(max(ready_ns, earliest_ns), latest_ns) - request.launch_ns) / NS_PER_S

    return latency
