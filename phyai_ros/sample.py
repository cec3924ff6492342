"""What one tick gets of the inputs: one complete set, not decoded yet, or the fault that prevents one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyai_core.types import Fault, FloatArray, Observation, Source
from phyai_ros.camera_view import CameraView
from phyai_ros.clouds import CloudView
from phyai_ros.image_bridge import message_to_rgb


@dataclass(frozen=True)
class Picture:
    """An image message, the calibration that holds for it, and what is done with both."""

    topic: str
    msg: Any
    view: CameraView
    info: Any = None

    def decode(self) -> NDArray[np.uint8]:
        """[h, w, 3] as the policy gets it. Raises ValueError naming topic and fault."""
        try:
            return self.view.apply(message_to_rgb(self.msg, self.view.settings.depth_range_m), self.info)
        except ValueError as error:
            raise ValueError(f"{self.topic} cannot be used: {error}") from error


@dataclass(frozen=True)
class InputSet:
    """One complete set of inputs, images not decoded yet. `stamp_ns` is the stamp of the oldest message used."""

    stamp_ns: int
    state: FloatArray  # [S]
    measured: FloatArray  # [A] measured joint positions in action order, robot units
    last_command: FloatArray  # [A] in policy units
    prompt: str
    sources: tuple[Source, ...]
    images: Mapping[str, Picture] = field(repr=False)  # by camera key
    effort: FloatArray | None = None  # [A] measured, where someone asked for it
    clouds: Mapping[str, CloudView] = field(default_factory=dict, repr=False)  # by cloud key
    history: tuple[InputSet, ...] = field(default=(), repr=False)  # of the ticks before, see Observation

    def decode(self) -> Observation:
        """Decode the images; runs on the inference thread. Raises ValueError naming topic and fault."""
        images = {key: picture.decode() for key, picture in self.images.items()}
        past = tuple(before.decode() for before in self.history)
        clouds = {key: cloud.decode() for key, cloud in self.clouds.items()}
        return Observation(
            self.stamp_ns, images, self.state, self.last_command, self.prompt, self.sources, past, clouds
        )


@dataclass(frozen=True)
class Sample:
    """What one tick gets: a set, or the fault that prevents one. Ages are now minus the newest stamp."""

    obs: InputSet | None
    fault: Fault | None
    ages: Mapping[str, float]  # s, by topic; NaN: nothing came yet
    spread_s: float = math.nan  # newest minus oldest stamp of the set; NaN: no set
    newest_ns: Mapping[str, int] = field(default_factory=dict)  # stamp by topic; without those that nothing came on

    @property
    def text(self) -> str:
        """The fault as a sentence; empty where there is none."""
        return self.fault.text if self.fault else ""
