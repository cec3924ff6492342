"""JointState messages of any number of publishers on one topic, sorted by which needed joints they carry."""

from __future__ import annotations

from collections.abc import Sequence

from phyai_ros.input_sets import Feed, History, Received
from phyai_ros.joints import JointMap, Layout

DEPTH = 16
MOST_LAYOUTS, MOST_PUBLISHERS = 256, 32  # bounds for publishers that change their names all the time


class JointInbox:
    """The newest messages per set of joints. Not locked."""

    def __init__(self, topic: str, joint_map: JointMap, reach_ns: int) -> None:
        """`reach_ns`: how far back the history of a publisher shall go."""
        self._topic, self._map, self._spacing_ns = topic, joint_map, reach_ns // DEPTH
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._histories: dict[frozenset[str], History] = {}
        self.seen: set[str] = set()  # every joint name that ever came, for sentences

    def layout(self, names: Sequence[str]) -> Layout:
        """What messages with these names contribute."""
        key = tuple(names)
        if key not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = self._map.layout(key)
            self.seen.update(key)
        return self._layouts[key]

    def push(self, new: Received) -> None:
        """Take a message in; one without a needed joint is not kept."""
        joints = new.layout.joints
        if not joints:
            return
        if joints not in self._histories:
            self._histories[joints] = History(DEPTH, self._spacing_ns)
        self._histories[joints].push(new)
        if len(self._histories) > MOST_PUBLISHERS:
            del self._histories[min(self._histories, key=lambda joints: self._histories[joints].newest_ns)]

    def clear(self) -> None:
        """Forget all messages."""
        self._histories.clear()

    def feeds(self) -> tuple[list[Feed], list[str]]:
        """The newest publishers that together have all needed joints, newest first, and the joints nobody has."""
        missing, feeds = set(self._map.required), []
        for joints in sorted(self._histories, key=lambda joints: -self._histories[joints].newest_ns):
            new = missing & joints
            if new:
                feeds.append(self._histories[joints].feed(self._topic, tuple(sorted(new)) if feeds else ()))
                missing -= joints
        return feeds, sorted(missing)
