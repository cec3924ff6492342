"""How long an inference takes in a replay: a logical time, so that a replay does not depend on the machine.

A latency is a function (request, seconds it really took here) -> seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from phyai_core.types import InferenceRequest
from phyai_ros.replay.bag import Bag

Latency = Callable[[InferenceRequest, float], float]

TIMING_TYPE = "phyai_ros/msg/ControlTiming"
LONGEST_S = 100.0


def constant_latency(seconds: float) -> Latency:
    """Always the same."""
    return lambda request, measured_s: seconds


def measured_latency(extra_s: float = 0.0) -> Latency:
    """What it took on this machine. The one choice with which two replays differ."""
    return lambda request, measured_s: measured_s + extra_s


def traced_latency(seconds: Sequence[float], extra_s: float = 0.0) -> Latency:
    """The latencies of a recording in their order, from the beginning again after the last one."""
    return lambda request, measured_s: seconds[request.seq % len(seconds)] + extra_s


def jittered_latency(latency: Latency, jitter_s: float, seed: int) -> Latency:
    """`latency` plus the absolute value of a normal draw with the deviation `jitter_s`, fixed by (seed, seq)."""

    def draw(request: InferenceRequest, measured_s: float) -> float:
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, request.seq, 1])))
        return latency(request, measured_s) + jitter_s * abs(float(generator.standard_normal()))

    return draw


def read_trace(path: Path) -> list[float]:
    """Inference latencies in seconds: of ControlTiming messages in a bag, or of `l_inference` in a .jsonl file.

    A .txt file holds one number a line. Raises ValueError naming the file and what is wrong with it.
    """
    if path.is_file() and path.suffix in (".jsonl", ".txt"):
        seconds = _read_lines(path)
    else:
        with Bag(path) as bag:
            topics = [name for name, topic in bag.topics.items() if topic.type == TIMING_TYPE]
            seconds = [float(message.msg.l_inference) for message in bag.messages(topics)] if topics else []
    seconds = [value for value in seconds if not math.isnan(value)]
    if not seconds:
        raise ValueError(f"{path} holds no latency; give a bag with {TIMING_TYPE}, or a timings.jsonl of a replay.")
    wrong = [value for value in seconds if not 0.0 <= value <= LONGEST_S]
    if wrong:
        raise ValueError(f"{path} holds the latency {wrong[0]:g}; allowed is 0 to {LONGEST_S:g} s.")
    return seconds


def _read_lines(path: Path) -> list[float]:
    seconds = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            seconds.append(float(json.loads(line)["l_inference"] if path.suffix == ".jsonl" else line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} line {number} holds no latency: {line[:60]!r}.") from error
    return seconds
