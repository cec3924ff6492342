"""Why the inputs of a tick cannot be used: one fault, with a sentence naming topic and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phyai_core.types import Fault, Reason
from phyai_ros.input_sets import Feed
from phyai_ros.stamps import NS_PER_S, StampLimits, judge_stamp

FROZEN_AFTER = 2  # messages with an unchanged stamp
MOST_NAMES = 12  # so many names fit into a sentence


def find_absent(feeds: Iterable[Feed], joint_topic: str, missing: Sequence[str], seen: Iterable[str]) -> Fault | None:
    """A topic without any message, or joints that no message names. `seen` are the joint names that did come."""
    for feed in feeds:
        if not feed.items:
            return Fault(Reason.INPUT_MISSING, f"no message yet on {feed.topic}")
    if missing and not seen:
        return Fault(Reason.INPUT_MISSING, f"no message yet on {joint_topic}")
    if missing:
        return Fault(
            Reason.INPUT_MISSING, f"{_list(missing)} missing from {joint_topic}, which names {_list(sorted(seen))}"
        )
    return None


def find_unusable(feeds: Iterable[Feed], now_ns: int, limits: StampLimits) -> Fault | None:
    """The first input whose newest message is broken, frozen, stale, from the future or from another clock."""
    for feed in feeds:
        newest = feed.items[-1]
        if newest.problem:
            return Fault(Reason.INPUT_INVALID, f"{feed.topic} {newest.problem}")
        fault = judge_stamp(feed.topic, newest.stamp_ns, now_ns, limits)
        if fault and fault.reason is Reason.INPUT_STALE:
            return _explain_stale(feed, (now_ns - newest.stamp_ns) / NS_PER_S, fault)
        if fault:
            return fault
    return None


def explain_spread(feeds: Sequence[Feed], slop_s: float) -> Fault:
    """The fault where no set of messages lies within the slop."""
    oldest = min(feeds, key=lambda feed: feed.items[-1].stamp_ns)
    newest = max(feeds, key=lambda feed: feed.items[-1].stamp_ns)
    spread_s = (newest.items[-1].stamp_ns - oldest.items[-1].stamp_ns) / NS_PER_S
    if oldest.joints:
        return _vanished(oldest, f"{spread_s:.3f} s before the newest message (inputs.slop_s: {slop_s:g})")
    text = f"{oldest.topic} and {newest.topic} are stamped {spread_s:.3f} s apart (inputs.slop_s: {slop_s:g})"
    return Fault(Reason.INPUT_STALE, text)


def _explain_stale(feed: Feed, age_s: float, stale: Fault) -> Fault:
    if feed.joints:
        return _vanished(feed, f"{age_s:.3f} s ago")
    if feed.repeats >= FROZEN_AFTER:
        text = f"{feed.topic} is frozen: {feed.repeats + 1} messages came with the same stamp, {age_s:.3f} s old"
        return Fault(Reason.INPUT_FROZEN, text)
    return stale


def _vanished(feed: Feed, when: str) -> Fault:
    return Fault(Reason.INPUT_MISSING, f"{_list(feed.joints)} missing from {feed.topic}, last seen {when}")


def _list(names: Sequence[str]) -> str:
    rest = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return ", ".join([*names[:MOST_NAMES], *rest])
