"""One way of replaying a bag: which latencies, which losses, which changed parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from phyai_ros.replay.bag import BagMessage
from phyai_ros.replay.latency import (
    Latency,
    constant_latency,
    jittered_latency,
    measured_latency,
    read_trace,
    traced_latency,
)
from phyai_ros.replay.topics import InputTopics
from phyai_ros.settings import Settings

AUTO, MEASURED, RECORDED = "auto", "measured", "recorded"
LONGEST_LATENCY_S = 100.0
USUAL_LATENCY_S = "0.02"  # where nothing is known


@dataclass(frozen=True)
class Scenario:
    """`latency` is a number of seconds, "measured" (wall time of this machine), "recorded" (as the live node had) or
    "auto" (recorded, else a usual one).

    `latency_trace` comes in its place. `drop_camera` {key: share of pictures that are lost}. `overrides` are parameters
    of the node that differ from its file. Raises ValueError naming the option that is wrong.
    """

    latency: str = USUAL_LATENCY_S
    latency_trace: Path | None = None
    inject_delay_s: float = 0.0
    jitter_s: float = 0.0
    drop_camera: Mapping[str, float] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    trace_s: tuple[float, ...] = ()  # in place of `latency` too: those of the live run in the bag

    def __post_init__(self) -> None:
        if self.latency not in (AUTO, MEASURED, RECORDED):
            self._constant_s()
        for name in ("inject_delay_s", "jitter_s"):
            if not 0.0 <= getattr(self, name) <= LONGEST_LATENCY_S:
                option = f"--{name.removesuffix('_s').replace('_', '-')}"
                raise ValueError(f"{option} is {getattr(self, name):g}; allowed is 0 to {LONGEST_LATENCY_S:g} s.")

    @property
    def recorded(self) -> bool:
        """Whether ticks and latencies are those of the live run in the bag."""
        return self.latency == RECORDED and self.latency_trace is None and not self.trace_s

    @property
    def repeatable(self) -> bool:
        """Whether a second replay gives the same bytes."""
        return self.latency != MEASURED or self.latency_trace is not None

    def make_latency(self, warm_up_s: float) -> tuple[Latency, float]:
        """The latency, and the one that the first delay forecast is made from. `warm_up_s` is what warming up took."""
        if self.latency_trace is not None or self.trace_s:
            seconds = read_trace(self.latency_trace) if self.latency_trace else list(self.trace_s)
            base, first_s = traced_latency(seconds, self.inject_delay_s), max(seconds)
        elif self.latency == MEASURED:
            base, first_s = measured_latency(self.inject_delay_s), 0.0 if math.isnan(warm_up_s) else warm_up_s
        else:
            first_s = self._constant_s()
            base = constant_latency(first_s + self.inject_delay_s)
        if self.jitter_s:
            base = jittered_latency(base, self.jitter_s, self.seed)
        return base, first_s + self.inject_delay_s + 3.0 * self.jitter_s

    def drop(self, messages: Iterable[BagMessage], inputs: InputTopics) -> Iterator[BagMessage]:
        """The messages that get through. Which pictures are lost is fixed by the seed."""
        lost = {inputs.cameras[key]: share for key, share in self.drop_camera.items()}
        draws = {topic: np.random.default_rng([self.seed, number]) for number, topic in enumerate(sorted(lost))}
        for message in messages:
            if message.topic not in lost or draws[message.topic].random() >= lost[message.topic]:
                yield message

    def check_cameras(self, inputs: InputTopics) -> None:
        """Raises ValueError where --drop-camera names a camera that the policy has not."""
        unknown = sorted(set(self.drop_camera) - set(inputs.cameras))
        if unknown:
            raise ValueError(f"--drop-camera names {', '.join(unknown)}; allowed: {', '.join(inputs.cameras)}.")

    def describe(self) -> str:
        """In a few words, for tables."""
        source = f"trace {self.latency_trace.name}" if self.latency_trace else f"latency {self._latency_text()}"
        parts = [source]
        parts += [f"+ {self.inject_delay_s:g} s"] if self.inject_delay_s else []
        parts += [f"jitter {self.jitter_s:g} s"] if self.jitter_s else []
        parts += [f"{key} loses {share:.0%} of its pictures" for key, share in self.drop_camera.items()]
        parts += [f"{name} {value}" for name, value in self.overrides.items()]
        return ", ".join(parts)

    def _latency_text(self) -> str:
        return self.latency if self.latency in (MEASURED, RECORDED) else f"{self._constant_s():g} s"

    def _constant_s(self) -> float:
        try:
            seconds = float(self.latency)
        except ValueError:
            seconds = math.nan
        if not 0.0 <= seconds <= LONGEST_LATENCY_S:
            allowed = f"seconds from 0 to {LONGEST_LATENCY_S:g}, {MEASURED} or {RECORDED}"
            raise ValueError(f"--latency is {self.latency!r}; allowed is {allowed}.")
        return seconds


def with_file_delay(scenario: Scenario, settings: Settings) -> Scenario:
    """inference.inject_delay_s of the parameter file counts as well: it is what the live node would do."""
    return replace(scenario, inject_delay_s=scenario.inject_delay_s + settings.inference.inject_delay_s)
