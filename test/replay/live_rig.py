"""A live node on a made bag, without ROS: a loop that stands still now and then, and a recorder that does not.

It runs the node's own pipeline. Its inputs come late where it stands still; what it publishes goes into the bag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from phyai_ros import messages
from phyai_ros.assembly import load_policy
from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag, BagMessage
from phyai_ros.replay.bag_types import NS_PER_S
from phyai_ros.replay.bag_writer import BagWriter, type_name
from phyai_ros.replay.clockwork import ALL, UniformTicks
from phyai_ros.replay.driver import Driver
from phyai_ros.replay.latency import constant_latency
from phyai_ros.replay.topics import NodeName, find_inputs
from phyai_ros.tick_trace import TracedTick
from replay.made_bags import START_NS, MadeBag
from replay.replay_rig import PARAMETERS

TICKS_PER_MESSAGE = 3
Event = Callable[[Driver], None]


def at(seconds: float) -> int:
    return START_NS + round(seconds * NS_PER_S)


class StallingTicks(UniformTicks):
    """A control loop that stands still during `stalls` and then goes on as the real one does.

    `again` (off, on): between these it is not active."""

    def __init__(self, dt_s: float, stalls: list[tuple[float, float]], again: tuple[float, float] | None) -> None:
        super().__init__(START_NS, round(dt_s * NS_PER_S))
        self._stalls, self._again = stalls, again

    def after(self, tick: TracedTick) -> TracedTick:
        following = super().after(tick)
        if self._again and tick.deadline_ns < at(self._again[0]) <= following.deadline_ns:
            return TracedTick(0, at(self._again[1]), sub_ticks=ALL)
        wake_ns = max([following.deadline_ns, *(at(end) for begin, end in self._stalls if _in(following, begin, end))])
        missed = (wake_ns - following.deadline_ns) // self.period_ns
        deadline_ns = following.deadline_ns + missed * self.period_ns
        return TracedTick(following.tick + missed, deadline_ns, wake_ns - deadline_ns, sub_ticks=0 if missed else ALL)


def _in(tick: TracedTick, begin: float, end: float) -> bool:
    return at(begin) <= tick.deadline_ns < at(end)


@dataclass
class LiveRun:
    """What happens to the node: `events` [(s, call)] come to it from outside of the bag, at times with a tick near."""

    made: MadeBag = field(default_factory=MadeBag)
    latency_s: float = 0.05
    stalls: list[tuple[float, float]] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)
    again: tuple[float, float] | None = None
    inputs_first: bool = True  # where it goes on after a stall, messages are handed over before it ticks
    parameters: dict = field(default_factory=dict)

    def record(self, folder: Path, with_ticks: bool = True) -> Path:
        """The bag of the made messages and of what the node published."""
        policy = load_policy(build_settings({**PARAMETERS, **self.parameters}), log=lambda line: None)
        settings, spec, node = policy.settings, policy.spec, NodeName()
        ticks = StallingTicks(spec.dt_s, self.stalls, self.again)
        written: list[tuple[int, str, object]] = []
        with Bag(self.made.write(folder / "made")) as bag:
            driver = Driver(
                policy,
                find_inputs(settings, spec, node),
                bag.start_ns,
                constant_latency(self.latency_s),
                self.latency_s,
                ticks=ticks,
            )
            names = list(driver.log.names)
            driver.on_command = lambda command, ns: written.append(
                (ns, "command", messages.to_command_message(command.row, names, ns))
            )
            driver.on_chunk = lambda command, timing, ns: written.extend(
                [
                    (ns, "chunk", messages.to_chunk_message(command, spec, names, ns)),
                    (ns, "timing", messages.to_timing_message(timing, ns)),
                ]
            )
            self._run(driver, bag)
        written += self._trace(driver) if with_ticks else []
        return self._write(folder, written)

    def _run(self, driver: Driver, bag: Bag) -> None:
        late = [replace(message, log_ns=self._arrival_ns(message.log_ns)) for message in bag.messages()]
        todo: list[tuple[int, BagMessage | Event]] = [(message.log_ns, message) for message in late]
        todo += [(at(seconds), event) for seconds, event in self.events]
        for due_ns, what in sorted(todo, key=lambda entry: entry[0]):
            driver.advance(due_ns)
            driver.clock.ns = max(driver.clock.ns, due_ns)
            driver.deliver(what) if isinstance(what, BagMessage) else what(driver)
        driver.pipeline.trace.finish()

    def _arrival_ns(self, log_ns: int) -> int:
        handover_ns = -1_000_000 if self.inputs_first else 1_000_000
        ends = [at(end) + handover_ns for begin, end in self.stalls if at(begin) <= log_ns < at(end)]
        return max([log_ns, *ends])

    def _trace(self, driver: Driver) -> list[tuple[int, str, object]]:
        ticks = driver.pipeline.trace.take()
        parts = [ticks[first : first + TICKS_PER_MESSAGE] for first in range(0, len(ticks), TICKS_PER_MESSAGE)]
        return [(part[-1].ran_ns, "ticks", messages.to_trace_message(part, part[-1].ran_ns)) for part in parts]

    def _write(self, folder: Path, written: list[tuple[int, str, object]]) -> Path:
        path = folder / "live.mcap"
        with Bag(folder / "made") as bag, BagWriter(path) as writer:
            rows = [(message.log_ns, message.topic, message.type, message.msg) for message in bag.messages()]
            rows += [(ns, f"/policy/{name}", type_name(type(message)), message) for ns, name, message in written]
            for log_ns, topic, kind, message in sorted(rows, key=lambda row: row[0]):
                writer.write(topic, kind, log_ns, message)
        return path
