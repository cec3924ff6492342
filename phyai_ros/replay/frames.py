"""A few pictures of each camera, spread over the bag, for the strip of a report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from phyai_ros.image_bridge import message_to_rgb
from phyai_ros.replay.bag import Bag, BagMessage

FRAMES = 8


class FrameStrip:
    """Give it every message with `take`; it keeps FRAMES pictures per camera of `cameras` {key: topic}."""

    def __init__(self, bag: Bag, cameras: Mapping[str, str]) -> None:
        self._due_ns = np.linspace(bag.start_ns, bag.end_ns, FRAMES + 2)[1:-1]
        self._key_of = {topic: key for key, topic in cameras.items()}
        self._taken: dict[str, int] = dict.fromkeys(cameras, 0)
        self.pictures: dict[str, list[tuple[int, NDArray[np.uint8]]]] = {key: [] for key in cameras}  # (log_ns, RGB)

    def take(self, message: BagMessage) -> None:
        key = self._key_of.get(message.topic)
        if key is None:
            return
        due = int(np.searchsorted(self._due_ns, message.log_ns, side="right"))
        if due > self._taken[key]:
            self._taken[key] = due
            try:
                self.pictures[key].append((message.log_ns, message_to_rgb(message.msg).copy()))
            except ValueError:
                return  # told as a finding already
