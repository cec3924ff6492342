"""The clocks that stamp the inputs, watched against ours: one per topic, or per publisher of a joint_states topic."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from phyai_core.clock_offset import ClockOffset, ClockState

MOST_CLOCKS = 32  # bound for publishers that change their names all the time
AHEAD_S = 1e-3  # a message cannot arrive before it was stamped; this much may be jitter of the clocks
DRIFT = 200e-6  # s per s; crystal clocks without synchronisation stay below 100e-6 against each other


class InputClocks:
    """`note` is called by the thread that receives; reading from another one sees a message less at worst."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = tuple(topics)
        self._clocks: dict[tuple[str, Hashable], ClockOffset] = {}

    def note(self, topic: str, publisher: Hashable, stamp_ns: int, arrival_stamp_ns: int) -> None:
        """A message of `publisher` (anything that tells them apart) on `topic`; both times are ROS time."""
        key = (topic, publisher)
        if stamp_ns <= 0:  # not stamped at all; the input is refused elsewhere
            return
        if key not in self._clocks:
            if len(self._clocks) >= MOST_CLOCKS:
                return
            self._clocks[key] = ClockOffset()
        self._clocks[key].note(stamp_ns, arrival_stamp_ns)

    def state(self, topic: str) -> ClockState:
        """Of several publishers the smallest offset, the largest drift and all steps together."""
        states = [clock.estimate() for (name, _), clock in list(self._clocks.items()) if name == topic]
        if not states:
            return ClockState()
        drifts = [state.drift for state in states if not math.isnan(state.drift)]
        offset_s = min(state.offset_s for state in states)
        return ClockState(offset_s, max(drifts, key=abs, default=math.nan), sum(s.steps_back for s in states))

    def remarks(self) -> list[str]:
        """What is wrong with each clock, as sentences; empty where all is well."""
        return [text for topic in self._topics for text in explain_clock(topic, self.state(topic))]


def explain_clock(topic: str, state: ClockState) -> list[str]:
    """Sentences about one clock."""
    texts = []
    if state.offset_s < -AHEAD_S:
        ahead_ms = -state.offset_s * 1e3
        texts.append(
            f"{topic} is stamped at least {ahead_ms:.1f} ms ahead of this host; synchronise the clocks (chrony)"
        )
    if abs(state.drift) > DRIFT:
        texts.append(
            f"the clock of {topic} drifts by {state.drift * 1e6:.0f} us per s against this host; synchronise it"
        )
    if state.steps_back:
        texts.append(f"stamps on {topic} went back {state.steps_back} times; messages out of order are not used")
    return texts
