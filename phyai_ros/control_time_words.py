"""Control time in words: which regime, which stage takes longest, what another model would change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from phyai_core.timing import Roofline

# (field of ControlTiming without l_, label, group): in the order in which they follow each other
STAGES: tuple[tuple[str, str, str], ...] = (
    ("observe", "camera", "input"),
    ("transfer", "transport", "input"),
    ("queue", "queue", "input"),
    ("decode", "decode", "inference"),
    ("preprocess", "preprocess", "inference"),
    ("vision", "vision", "inference"),
    ("prefix", "prefix", "inference"),
    ("denoise", "denoise", "inference"),
    ("postprocess", "postprocess", "inference"),
    ("other", "other inference", "inference"),
    ("adopt", "wait for the tick", "actuation"),
    ("effect", "robot follows", "actuation"),
)
FACTORS = (0.25, 0.5, 2.0, 4.0)  # of the speed of the model
NO_CHANGE = 0.005  # of the cycle
WHAT = {
    "camera": "the camera and its driver",
    "transport": "the middleware",
    "queue": "messages waiting for a launch",
    "other inference": "waiting and injected delay around the model",
    "wait for the tick": "waiting for the next control tick",
    "robot follows": "the robot's own lag",
}


def describe_regime(point: Roofline) -> str:
    """One or two sentences on where the robot stands on the roofline. Latencies in seconds."""
    if point.bound == "unknown":
        return "Not enough chunks have been executed yet to say what bounds the robot."
    env, inference = show_ms(point.l_env), show_ms(point.l_inference)
    if point.bound == "environment":
        return (
            f"Environment-bound: inference takes {inference}, and {env} of each chunk are executed before the next. "
            f"The robot does not wait for the model: a faster one adds margin (now {show_ms(point.slack)}), not speed."
        )
    return (
        f"Inference-bound: inference takes {inference}, longer than the {env} of a chunk that are to be executed. "
        "New plans come late: every millisecond off the model shortens the cycle."
    )


def describe_dominant(medians_s: Mapping[str, float]) -> str:
    """Which stage of `medians_s` {stage: seconds} takes longest; empty where none is known."""
    known = {name: seconds for name, seconds in medians_s.items() if seconds > 0}
    if not known:
        return ""
    total_s, longest = math.fsum(known.values()), max(known, key=known.get)
    label = next(label for name, label, _ in STAGES if name == longest)
    what = f" ({WHAT[label]})" if label in WHAT else ""
    share = 100 * known[longest] / total_s
    end = "effect" if "effect" in known else "command (the robot's own lag is not known)"
    return (
        f"Of {show_ms(total_s)} from exposure to {end}, {label}{what} takes {show_ms(known[longest])} ({share:.0f} %)."
    )


def describe_factors(point: Roofline, overlap: bool, factors: Sequence[float] = FACTORS) -> str:
    """What a model `factor` times as fast would change in the cycle. `overlap`: inference runs during execution."""
    if point.bound == "unknown":
        return ""
    now_s = predict_cycle(point.l_env, point.l_inference, overlap)
    changed, same = [], []
    for factor in factors:
        then_s = predict_cycle(point.l_env, point.l_inference / factor, overlap)
        name = f"{factor:g} times faster" if factor > 1 else f"{1 / factor:g} times slower"
        if abs(then_s - now_s) < NO_CHANGE * now_s:
            same.append(name)
        else:
            changed.append(f"{name} {'' if changed else 'it is '}{show_ms(then_s)}")
    texts = [f"The cycle from launch to launch is {show_ms(now_s)}."]
    texts += [f"With a model {', '.join(changed)}."] if changed else []
    if same:
        names = " or ".join(filter(None, [", ".join(same[:-1]), same[-1]]))
        texts.append(f"A model {names} would not change it.")
    return " ".join(texts)


def describe_robots(l_env_s: float, l_inference_p99_s: float) -> str:
    """How many robots could share the device, one after the other, each keeping its execution horizon."""
    robots = count_robots(l_env_s, l_inference_p99_s)
    if robots is None:
        return ""
    if robots == 0:
        return "Not even one robot keeps its execution horizon at the 99th percentile of inference."
    many = "one such robot" if robots == 1 else f"{robots} such robots one after the other, without batching"
    return f"At the 99th percentile this device serves {many}."


def count_robots(l_env_s: float, l_inference_p99_s: float) -> int | None:
    """floor(L_env / L_inference at p99); None where a latency is unknown."""
    x = Roofline(l_env_s, l_inference_p99_s).x
    return None if math.isnan(x) else math.floor(x + 1e-9)


def predict_cycle(l_env_s: float, l_inference_s: float, overlap: bool) -> float:
    """L_control on the roof, or on the curve without overlap."""
    return max(l_env_s, l_inference_s) if overlap else l_env_s + l_inference_s


def show_ms(seconds: float) -> str:
    """ "12.3 ms", or "unknown"."""
    if math.isnan(seconds):
        return "unknown"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.1f} ms" if abs(milliseconds) < 99.95 else f"{milliseconds:.0f} ms"
