"""Messages that were published and never came to us, counted by the sequence numbers that middlewares give them.

A subscription keeps the newest message only, so a message counts too when a newer one overtook it before we looked.
That is usual for fast joint states and harmless; of a camera it means that pictures are lost on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

MOST_PUBLISHERS = 32  # bound for publishers that come and go
RECENT = 50  # messages that a remark looks back on
LARGE_SHARE = 0.2


class MessageGaps:
    """`note` is called by the thread that receives; reading from another one sees a message less at worst."""

    def __init__(self, single: Iterable[str]) -> None:
        """`single`: topics with one publisher, such as cameras; only there a loss is worth a remark."""
        self._single = tuple(single)
        self._last: dict[tuple[str, Hashable], int] = {}
        self._recent: dict[str, deque[int]] = {}
        self.unseen: dict[str, int] = {}  # per topic; no entry where the middleware does not number messages

    def note(self, topic: str, info: Mapping[str, Any]) -> None:
        """A message of `topic` came with this message info of rclpy."""
        number, gid = info.get("publication_sequence_number"), info.get("publisher_gid")
        if number is None or (gid is None and topic not in self._single):
            return  # without the publisher's id the numbers of several ones cannot be told apart
        publisher = (topic, bytes(gid["data"]) if gid else None)
        if publisher not in self._last and len(self._last) >= MOST_PUBLISHERS:
            self._last.clear()
        gap = max(0, number - self._last.get(publisher, number - 1) - 1)
        self._last[publisher] = number
        self.unseen[topic] = self.unseen.get(topic, 0) + gap
        self._recent.setdefault(topic, deque(maxlen=RECENT)).append(gap)

    def remarks(self) -> list[str]:
        """A sentence for each camera that loses many pictures at present."""
        texts = []
        for topic in self._single:
            gaps = tuple(self._recent.get(topic, ()))
            share = sum(gaps) / (sum(gaps) + RECENT)
            if len(gaps) == RECENT and share > LARGE_SHARE:
                text = f"{share:.0%} of the messages on {topic} do not come through"
                texts.append(f"{text}; look at the network, the size of its buffers, or the load of this machine")
        return texts
