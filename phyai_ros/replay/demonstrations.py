"""Demonstrations of a bag, episode by episode: what the camera showed, and where the joints were.

The stamps say where an episode ends: at a gap between joint states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from phyai_ros.image_bridge import message_to_rgb
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_types import NS_PER_S, stamp_of
from phyai_ros.sim.dataset import Samples

IMAGE_SIZE = 64
EPISODE_GAP_PERIODS = 5.0


@dataclass(frozen=True)
class Episode:
    """N consecutive moments: stamps [N], pictures [N, h, w, 3], positions [N, A]."""

    stamps_ns: NDArray[np.int64]
    images: NDArray[np.uint8]
    positions: NDArray[np.float32]


@dataclass(frozen=True)
class Demonstrations:
    """What a bag shows. `names` [A] in the order of its joint states."""

    names: tuple[str, ...]
    dt_s: float
    episodes: tuple[Episode, ...]


def read_demonstrations(bag: Bag, camera: str, joints: str) -> Demonstrations:
    """Every joint state with the newest picture, in episodes. Raises ValueError where a topic is missing."""
    for topic in (camera, joints):
        if topic not in bag.topics or not bag.topics[topic].count:
            raise ValueError(f"{bag.path} has no messages on {topic}; it holds {', '.join(bag.topics)}.")
    stamps, images, rows, names, picture = [], [], [], (), None
    for message in bag.messages([camera, joints]):
        if message.topic == camera:
            picture = _small(message_to_rgb(message.msg))
        elif picture is not None:
            names = names or tuple(message.msg.name)
            stamps.append(stamp_of(message.msg) or message.log_ns)
            images.append(picture)
            rows.append(np.asarray(message.msg.position, np.float32))
    steps = np.diff(stamps)
    if not len(steps):
        raise ValueError(f"{bag.path} has no two joint states with a picture before them.")
    dt_ns = float(np.median(steps))
    edges = [0, *(np.flatnonzero(steps > EPISODE_GAP_PERIODS * dt_ns) + 1).tolist(), len(stamps)]
    parts = [slice(first, last) for first, last in pairwise(edges) if last - first > 1]
    columns = np.array(stamps), np.array(images), np.array(rows)
    return Demonstrations(names, dt_ns / NS_PER_S, tuple(Episode(*(c[part] for c in columns)) for part in parts))


def _small(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    same = image.shape[:2] == (IMAGE_SIZE, IMAGE_SIZE)
    return image if same else cv2.resize(image, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_AREA)


def make_samples(episodes: Sequence[Episode], horizon: int) -> Samples:
    """Row i of a label is the position i + 1 moments later, minus the one now; behind the end the last one stands."""
    images, states, actions = [], [], []
    for episode in episodes:
        last = len(episode.positions) - 1
        for now in range(last):
            ahead = np.minimum(now + 1 + np.arange(horizon), last)
            images.append(episode.images[now])
            states.append(episode.positions[now])
            actions.append(episode.positions[ahead] - episode.positions[now])
    return Samples(np.stack(images), np.stack(states), np.stack(actions))
