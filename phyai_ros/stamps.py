"""What a header stamp says against the ROS clock: usable, stale, in the future, zero or from another clock."""

from __future__ import annotations

from dataclasses import dataclass

from phyai_core.types import Fault, Reason

NS_PER_S = 1_000_000_000
# Further apart than this, the two stamps come from different clocks (simulated against wall time).
FOREIGN_CLOCK_NS = 3600 * NS_PER_S
# Under simulated time the ROS clock moves in the steps of /clock, so newer stamps may seem to lie ahead.
SIM_CLOCK_STEP_S = 0.05


@dataclass(frozen=True)
class StampLimits:
    """How old and how far ahead a stamp may be, in seconds of ROS time."""

    max_age_s: float
    future_tolerance_s: float


def judge_stamp(name: str, stamp_ns: int, now_ns: int, limits: StampLimits) -> Fault | None:
    """None for a usable stamp, else the fault with a sentence that names the topic and the numbers."""
    if now_ns <= 0:
        return Fault(Reason.INPUT_CLOCK, "the ROS clock has not started: use_sim_time is set and /clock is silent")
    age_ns = now_ns - stamp_ns
    if stamp_ns <= 0:
        return Fault(Reason.INPUT_CLOCK, f"{name} comes without a stamp; stamp it, or set inputs.zero_stamps: arrival")
    if abs(age_ns) > FOREIGN_CLOCK_NS:
        side = "behind" if age_ns > 0 else "ahead of"
        hours = abs(age_ns) / FOREIGN_CLOCK_NS
        foreign = f"{name} is stamped {hours:.0f} h {side} this node's clock"
        return Fault(Reason.INPUT_CLOCK, f"{foreign}: simulated against wall time? See use_sim_time")
    if age_ns < -limits.future_tolerance_s * NS_PER_S:
        ahead = f"{name} is stamped {-age_ns / NS_PER_S:.3f} s in the future"
        return Fault(Reason.INPUT_CLOCK, f"{ahead} (inputs.future_tolerance_s: {limits.future_tolerance_s:g})")
    if age_ns > limits.max_age_s * NS_PER_S:
        old = f"{name} is {age_ns / NS_PER_S:.3f} s old"
        return Fault(Reason.INPUT_STALE, f"{old} (inputs.max_age_s: {limits.max_age_s:g})")
    return None
