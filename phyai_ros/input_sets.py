"""Recent messages of each input, and the newest set of them whose stamps lie close together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phyai_ros.joints import Layout

CLOCK_WENT_BACK_NS = 1_000_000_000  # a stamp older by more than this starts a new history


@dataclass(frozen=True)
class Received:
    """A message as it arrived, with the times of its way to us."""

    msg: Any
    stamp_ns: int  # header stamp, ROS time
    arrival_ns: int  # steady time
    arrival_tick: int  # the tick under way
    arrival_stamp_ns: int = 0  # ROS time
    published_stamp_ns: int = 0  # ROS time; 0: unknown
    problem: str = ""  # why it cannot be used, apart from its stamp
    layout: Layout | None = None  # JointState only


@dataclass(frozen=True)
class Feed:
    """One input as a tick sees it: a camera, or the joints of one publisher. `items` are ordered by stamp."""

    topic: str
    items: Sequence[Received]
    repeats: int  # messages in a row that came with the stamp of the one before
    joints: tuple[str, ...] = ()  # set where a publisher of other joints is newer: what only this one has


class History:
    """The newest message of one input and a few older ones, in the order of their stamps.

    Older ones are kept `spacing_ns` apart, so that a few of them reach back far enough at any rate. Not locked.
    """

    def __init__(self, depth: int, spacing_ns: int = 0) -> None:
        self._depth, self._spacing_ns = depth, spacing_ns
        self._items: list[Received] = []
        self._repeats = 0

    def push(self, new: Received) -> None:
        """Take a message in; one that arrives out of order is dropped."""
        if self._items and new.stamp_ns < self.newest_ns - CLOCK_WENT_BACK_NS:
            self._items.clear()
        behind_ns = self.newest_ns - new.stamp_ns
        if self._items and behind_ns > 0:
            return
        self._repeats = self._repeats + 1 if self._items and behind_ns == 0 else 0
        if self._repeats or self._newest_need_not_be_kept():
            self._items[-1] = new
        else:
            self._items.append(new)
        del self._items[: -self._depth]

    @property
    def newest_ns(self) -> int:
        """Stamp of the newest message; 0 where there is none."""
        return self._items[-1].stamp_ns if self._items else 0

    def feed(self, topic: str, joints: tuple[str, ...] = ()) -> Feed:
        """A copy for one tick."""
        return Feed(topic, tuple(self._items), self._repeats, joints)

    def _newest_need_not_be_kept(self) -> bool:
        """A broken message is never kept as an older one, nor is one too close to the one before."""
        if self._items and self._items[-1].problem:
            return True
        return len(self._items) > 1 and self._items[-1].stamp_ns - self._items[-2].stamp_ns < self._spacing_ns


def choose_set(histories: Sequence[Sequence[Received]], slop_ns: int) -> list[Received] | None:
    """One message per input with all stamps within `slop_ns`, or None.

    Of all such sets the one whose oldest stamp is newest, and in it the newest message of each input.
    """
    newest_start_ns = min(items[-1].stamp_ns for items in histories)
    starts_ns = {item.stamp_ns for items in histories for item in items if item.stamp_ns <= newest_start_ns}
    for start_ns in sorted(starts_ns, reverse=True):
        chosen = [_newest_between(items, start_ns, start_ns + slop_ns) for items in histories]
        if None not in chosen:
            return chosen
    return None


def _newest_between(items: Sequence[Received], start_ns: int, end_ns: int) -> Received | None:
    return next((item for item in reversed(items) if start_ns <= item.stamp_ns <= end_ns), None)
