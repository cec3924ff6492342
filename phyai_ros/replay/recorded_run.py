"""What a policy node did while a bag was recorded, from its own topics: ticks, launches, latencies, commands.

With it a replay takes the very decisions of the live run: each message is seen at the tick at which the node saw it,
each inference takes as long as it took. What then differs is a difference of the code, the weights or the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_types import NS_PER_S, stamp_of, to_ns
from phyai_ros.replay.topics import NodeName
from phyai_ros.tick_trace import TracedTick

CHUNK, TIMING, COMMAND, TICKS = "~/chunk", "~/timing", "~/command", "~/ticks"


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
    entry_row: int
    rows: int


@dataclass(frozen=True)
class RecordedRun:
    """Chunks in order; commands as ticks [T], stamps [T] and rows [T, A] in the order of `names`.

    `trace` is empty where ~/ticks was not recorded.
    """

    dt_s: float
    chunks: tuple[RecordedChunk, ...]
    names: tuple[str, ...]
    command_ticks: NDArray[np.int64]
    command_ns: NDArray[np.int64]
    command_rows: NDArray[np.float64]
    trace: tuple[TracedTick, ...] = ()

    def latencies_s(self) -> list[float]:
        """The known ones."""
        return [chunk.latency_s for chunk in self.chunks if chunk.latency_s == chunk.latency_s]

    @property
    def end_ns(self) -> int:
        """The deadline of the last tick that is known to have run."""
        return max([int(self.command_ns[-1]), *(tick.deadline_ns for tick in self.trace[-1:])])

    @property
    def first_latency_s(self) -> float:
        """A latency that makes the delay forecast of the node before it had counted any."""
        return max(0.5, self.chunks[0].delay_predicted - 0.5) * self.dt_s


def has_recorded_run(bag: Bag, node: NodeName) -> bool:
    """Whether a policy node's chunks and commands are in the bag."""
    return all(bag.holds(node.resolve(name)) for name in (CHUNK, COMMAND))


def read_recorded_run(bag: Bag, node: NodeName) -> RecordedRun:
    """Reads the node's topics only. Raises ValueError where they are not in the bag."""
    if not has_recorded_run(bag, node):
        missing = [node.resolve(name) for name in (CHUNK, COMMAND)]
        raise ValueError(
            f"{bag.path} holds no run of a policy node: {' and '.join(missing)} are needed; "
            "record them too, give the node's name (--node), or give another --latency."
        )
    topics = {node.resolve(name): name for name in (CHUNK, TIMING, COMMAND, TICKS)}
    found: dict[str, list[Any]] = {name: [] for name in topics.values()}
    for message in bag.messages(topics):
        found[topics[message.topic]].append(message.msg)
    chunks, commands = found[CHUNK], found[COMMAND]
    timings = {timing.seq: timing for timing in found[TIMING]}
    recorded = tuple(_read_chunk(chunk, timings.get(chunk.seq), node) for chunk in chunks)
    stamps = np.array([stamp_of(command) for command in commands], np.int64)
    return RecordedRun(
        dt_s=float(chunks[0].dt),
        chunks=recorded,
        names=tuple(commands[0].name),
        command_ticks=_number_ticks(stamps, recorded, float(chunks[0].dt)),
        command_ns=stamps,
        command_rows=np.array([command.position for command in commands], np.float64),
        trace=tuple(tick for message in found[TICKS] for tick in _read_trace(message, node)),
    )


def _read_chunk(chunk: Any, timing: Any, node: NodeName) -> RecordedChunk:
    stamps = [to_ns(stamp) for stamp in chunk.source_stamps]
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
        int(chunk.entry_row),
        int(chunk.rows),
    )


def _read_trace(message: Any, node: NodeName) -> Iterator[TracedTick]:
    """One TickTrace, topics under their full names."""
    topics = [node.resolve(name) for name in message.input_names]
    stamps = [to_ns(stamp) for stamp in message.input_stamps]
    for row, tick in enumerate(message.ticks):
        newest = dict(zip(topics, stamps[row * len(topics) :], strict=False))
        yield TracedTick(
            int(tick),
            to_ns(message.deadlines[row]),
            round(float(message.lateness[row]) * NS_PER_S),
            message.reasons[row],
            int(message.launches[row]),
            to_ns(message.newer_than[row]),
            {topic: stamp_ns for topic, stamp_ns in newest.items() if stamp_ns},
            int(message.sub_ticks[row]),
        )


def _number_ticks(stamps: NDArray[np.int64], chunks: Sequence[RecordedChunk], dt_s: float) -> NDArray[np.int64]:
    """The tick of each command, counted from the nearest adoption, whose tick and stamp are known."""
    anchors_ns = np.array([chunk.adopt_ns for chunk in chunks])
    ticks = []
    for stamp_ns in stamps:
        chunk = chunks[int(np.abs(anchors_ns - stamp_ns).argmin())]
        ticks.append(chunk.adopt_tick + round((int(stamp_ns) - chunk.adopt_ns) / (dt_s * NS_PER_S)))
    return np.array(ticks, np.int64)
