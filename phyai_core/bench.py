"""Measures an engine: wall time, device time per stage, kernels, memory, with prompts and RTC as on a robot.

Wall time is one `Engine.run` from the observation to robot units, the wait for the device included.
"""

from __future__ import annotations

import resource
import time
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from phyai_core.adapter import Adapter
from phyai_core.engine import Engine, blank_observation, blank_request, plain_tables
from phyai_core.remote import RemoteEngine
from phyai_core.rtc import RtcConfig, RtcTables, build_tables
from phyai_core.types import Leftover, Observation, PolicySpec

PAUSE_S = 0.02
BLOCKS = 4  # cases take turns in blocks, so that a drift of the device's clock hits all alike
NAME_LENGTH = 100  # of kernels: library names say everything in hundreds of characters
DEVICE_STAGES = ("vision", "prefix", "denoise")


@dataclass
class Case:
    """What is measured: `make(run)` gives the requests of one batch; preparing them is part of the wall time.

    One in `every` runs is measured, for cases that only show a trend.
    """

    name: str
    make: Callable[[int], Sequence[tuple[Observation, RtcTables]]]
    every: int = 1
    wall_s: list[float] = field(default_factory=list)
    device_s: list[float] = field(default_factory=list)
    stages_s: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, engine: Engine, noise: np.ndarray, run: int) -> None:
        """One inference."""
        requests = self.make(run)
        started = time.perf_counter()
        results = engine.run([engine.preprocess(obs, tables, noise) for obs, tables in requests])
        self.wall_s.append(time.perf_counter() - started)
        stages = results[0].stages_s
        self.device_s.append(sum(stages.get(name, 0.0) for name in DEVICE_STAGES))
        for name, seconds in stages.items():
            self.stages_s.setdefault(name, []).append(seconds)

    def report(self) -> dict:
        """Milliseconds, of the wall, the device and each stage."""
        stages = {name: summarise_ms(seconds) for name, seconds in self.stages_s.items()}
        wall_ms, device_ms = summarise_ms(self.wall_s), summarise_ms(self.device_s)
        return {"runs": len(self.wall_s), "wall_ms": wall_ms, "device_ms": device_ms, "stages_ms": stages}


def summarise_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, p50, p90, p99 and max in milliseconds."""
    values = np.asarray(seconds) * 1e3
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return {"mean": values.mean(), "p50": p50, "p90": p90, "p99": p99, "max": values.max()}


def measure_cases(engine: Engine, cases: Sequence[Case], runs: int, warm_up: int) -> None:
    """`runs` inferences of every case after `warm_up` of each that are not counted."""
    noise = noise_for(engine.spec)
    for case in cases:
        for run in range(warm_up):
            replace(case, wall_s=[], device_s=[], stages_s={}).measure(engine, noise, run)
    for block in np.array_split(np.arange(runs), BLOCKS):
        for case in cases:
            for run in block[:: case.every]:
                case.measure(engine, noise, int(run))


def make_cases(spec: PolicySpec, prompts: Sequence[str], batch_sizes: Sequence[int]) -> Iterator[Case]:
    """The fixed case, one with a prompt of another length each time, one with RTC, and one for each batch size.

    `prompts` are of different lengths, the first one is the fixed one.
    """
    plain, tied = plain_tables(spec), rtc_tables(spec)
    observations = [random_observation(spec, prompt, seed) for seed, prompt in enumerate(prompts)]
    fixed = observations[0]
    yield Case("fixed prompt", lambda run: [(fixed, plain)])
    if len(observations) > 1:
        yield Case("varying prompt", lambda run: [(observations[run % len(observations)], plain)])
    if "identity" in spec.rtc_modes:
        yield Case("rtc identity", lambda run: [(fixed, tied)])
    for size in batch_sizes:
        if size > 1:
            yield Case(f"batch {size}", lambda run, size=size: [(fixed, plain)] * size, every=4)


def noise_for(spec: PolicySpec) -> np.ndarray:
    """Standard normal, [H, A'], always the same."""
    return np.random.default_rng(0).standard_normal(spec.noise_shape, dtype=np.float32)


def random_observation(spec: PolicySpec, prompt: str, seed: int) -> Observation:
    """Noise in every camera and a state within one standard deviation."""
    generator, blank = np.random.default_rng(seed), blank_observation(spec)
    images = {key: generator.integers(0, 256, image.shape, np.uint8) for key, image in blank.images.items()}
    state = generator.uniform(-1, 1, spec.state_dim).astype(np.float32)
    return replace(blank, images=images, state=state, prompt=prompt)


def rtc_tables(spec: PolicySpec) -> RtcTables:
    """Guidance towards half a chunk that is left over, with a delay of a tenth of the horizon."""
    horizon, half = spec.action_horizon, spec.action_horizon // 2
    rows = np.random.default_rng(1).standard_normal((half, spec.latent_dim), dtype=np.float32)
    leftover = Leftover(rows, rows[:, : spec.action_dim], max(1, horizon // 10), horizon - half)
    return build_tables(RtcConfig("identity"), horizon, spec.num_denoise_steps, spec.latent_dim, leftover)


def prompts_for(adapter: Adapter, count: int = 16) -> list[str]:
    """Prompts that all go into the largest bucket: first one that fills it, then shorter ones of different lengths.

    For a policy without prompts, one empty text.
    """
    if not adapter.prompt_buckets:
        return [""]
    *_, below, longest = (0, 0, *adapter.prompt_buckets)
    lengths = np.unique(np.linspace(longest, max(below + 1, longest // 2), count).astype(int))[::-1]
    return list(dict.fromkeys(_fill_prompt(adapter, int(length)) for length in lengths))


def _fill_prompt(adapter: Adapter, length: int) -> str:
    """The shortest text of a pattern that has `length` tokens or more."""
    blank, text = blank_observation(adapter.spec), "block" * length

    def tokens(end: int) -> int:
        return count_tokens(adapter.preprocess(replace(blank, prompt=text[:end])))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about longer prompts tried on the way
        return text[: bisect_left(range(len(text)), length, key=tokens)]


def longest_inputs(adapter: Adapter) -> dict[str, torch.Tensor]:
    """Inputs of a blank observation, its prompt padded to the largest bucket."""
    inputs = adapter.preprocess(blank_observation(adapter.spec))
    return adapter.pad_prompt(inputs, adapter.prompt_buckets[-1]) if adapter.prompt_buckets else inputs


def count_tokens(inputs: Mapping[str, torch.Tensor]) -> int:
    """Real tokens of the prompt; 0 for a policy without one."""
    return int(inputs["token_mask"].sum()) if "token_mask" in inputs else 0


def profile_kernels(engine: Engine) -> dict | None:
    """What one inference launches on a CUDA device, by kernel; None where there is no such device or no profiler.

    `launches`; `span_us` from the first start to the last end, of it `idle_us` with no kernel running; `kernels`
    [{name, launches, us}], longest first. Launches that overlap (they wait in place for the one before) count twice.
    """
    if engine.device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        engine.infer(*blank_request(engine.spec))
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events = [event for event in events if not event.name.startswith(("Memcpy", "Memset"))]
    if not events:
        return None
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    return {"launches": len(events), **_measure_gaps(spans), "kernels": _group_kernels(events)}


def _measure_gaps(spans: Sequence[tuple[float, float]]) -> dict[str, float]:
    end, idle_us = spans[0][0], 0.0
    for start, stop in spans:
        idle_us += max(0.0, start - end)
        end = max(end, stop)
    return {"span_us": end - spans[0][0], "idle_us": idle_us}


def _group_kernels(events: Sequence) -> list[dict]:
    groups: dict[str, list[float]] = {}
    for event in events:
        groups.setdefault(event.name[:NAME_LENGTH], []).append(event.time_range.end - event.time_range.start)
    ranked = sorted(groups.items(), key=lambda group: -sum(group[1]))
    return [{"name": name, "launches": len(times), "us": sum(times)} for name, times in ranked]


def memory_bytes(device: torch.device) -> dict[str, int]:
    """Allocated now, at most, and reserved on a CUDA device; resident on a CPU."""
    if device.type != "cuda":
        return {"resident_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "allocated_peak": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
    }


def compare_placements(thread: Engine, process: RemoteEngine, runs: int) -> dict[str, dict[str, float]]:
    """Wall time of the same inference in both, turn by turn: milliseconds by placement, and of the difference.

    Before each there is a pause, as on a robot that launches now and then: neither finds its caches warm.
    """
    spec = thread.spec
    request = (random_observation(spec, "", 0), plain_tables(spec), noise_for(spec))
    walls: dict[str, list[float]] = {"thread": [], "process": []}
    for _ in range(runs):
        for name, engine in (("thread", thread), ("process", process)):
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            engine.infer(*request)
            walls[name].append(time.perf_counter() - started)
    overhead = np.subtract(walls["process"], walls["thread"])
    return {**{name: summarise_ms(wall) for name, wall in walls.items()}, "overhead": summarise_ms(overhead)}


def matrix_dtype(adapter: Adapter) -> torch.dtype | None:
    """The type of most of the weights; FP8 is only a form in which some are kept. None for an exported network."""
    modules = [value for value in vars(adapter).values() if isinstance(value, torch.nn.Module)]
    sizes: Counter[torch.dtype] = Counter()
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        sizes[parameter.dtype] += parameter.numel() if parameter.dtype.itemsize > 1 else 0
    return max(sizes, key=sizes.get, default=None)


def relative_error(engine: Engine, reference: Engine, request: tuple[Observation, RtcTables, np.ndarray]) -> float:
    """||latent - reference|| / ||reference|| of one inference."""
    latent, expected = (one.infer(*request).latent.astype(np.float64) for one in (engine, reference))
    return float(np.linalg.norm(latent - expected) / np.linalg.norm(expected))
