"""Runs episodes with a policy that it knows by topics only: disable it, wait, reset the world, enable it, judge.

WAITING   ~/enable false, until the policy says that it is disabled
SETTLING  the world stands still at its start until the sensors have shown it
RUNNING   ~/enable true, until success, contact or time-out
FINISHED  all episodes are over
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from phyai_ros.sim.robot import RobotWorld
from phyai_ros.sim.scene import Snapshot
from phyai_ros.sim.task import EpisodeJudge, Outcome, Start, draw_start

REPEAT_TICKS = 12  # a policy that starts late must hear the disable too
SETTLE_TICKS = 4
FAREWELL_TICKS = 75  # 3 s for a policy that never says that it is disabled
DISABLED = "disabled"


class Phase(str, Enum):
    """Where the supervisor stands."""

    WAITING = "waiting"
    SETTLING = "settling"
    RUNNING = "running"
    FINISHED = "finished"


class Supervisor:
    """`tick` is called at 25 Hz with what the world looks like.

    `send_enable(bool)` and `send_report(dict)` publish; `policy_listens()` says whether anyone would hear an enable.
    `episodes` 0 means for ever. Episode i starts from random seed `seed` + i - 1, or with the puck at `puck_y_m`.
    """

    def __init__(
        self,
        world: RobotWorld,
        send_enable: Callable[[bool], None],
        send_report: Callable[[dict[str, Any]], None],
        policy_listens: Callable[[], bool],
        episodes: int = 0,
        seed: int = 0,
        puck_y_m: float | None = None,
    ) -> None:
        self._world = world
        self._send_enable, self._send_report, self._policy_listens = send_enable, send_report, policy_listens
        self._episodes, self._seed, self._puck_y_m = episodes, seed, puck_y_m
        self._judge = EpisodeJudge()
        self._state = ""
        self._ticks = 0  # in this phase
        self._start_ns = 0
        self.episode = 1
        self.successes = 0
        self.phase = Phase.WAITING
        world.reset(self._draw())

    def note_status(self, state: str) -> None:
        """The policy says what state it is in."""
        self._state = state

    @property
    def is_over(self) -> bool:
        """All episodes are over, and the policy has stopped or had the time to."""
        return self.phase is Phase.FINISHED and (self._state == DISABLED or self._ticks >= FAREWELL_TICKS)

    def tick(self, snapshot: Snapshot, stamp_ns: int) -> None:
        """One control period of the world, with `snapshot` taken at `stamp_ns`."""
        step = {Phase.WAITING: self._wait, Phase.SETTLING: self._settle, Phase.RUNNING: self._run}.get(self.phase)
        self._ticks += 1
        if step is not None:
            step(snapshot, stamp_ns)

    def _wait(self, snapshot: Snapshot, stamp_ns: int) -> None:
        if self._ticks % REPEAT_TICKS == 1:
            self._send_enable(False)
        if self._state == DISABLED and self._policy_listens():
            self._world.reset(self._draw())
            self._world.paused = True
            self._enter(Phase.SETTLING)

    def _settle(self, snapshot: Snapshot, stamp_ns: int) -> None:
        if self._ticks < SETTLE_TICKS:
            return
        self._judge.reset()
        self._start_ns = stamp_ns
        self._enter(Phase.RUNNING)
        self._report(snapshot, stamp_ns)
        self._world.paused = False
        self._send_enable(True)

    def _run(self, snapshot: Snapshot, stamp_ns: int) -> None:
        outcome = self._judge.update(snapshot.tool_xy, snapshot.puck_xy, self._world.contact)
        if outcome is Outcome.RUNNING:
            return
        self._send_enable(False)
        self._state = ""  # what it says from now on counts
        self.successes += outcome is Outcome.SUCCESS
        last = self.episode == self._episodes
        self._enter(Phase.FINISHED if last else Phase.WAITING)
        self._report(snapshot, stamp_ns)
        self.episode += not last

    def _enter(self, phase: Phase) -> None:
        self.phase, self._ticks = phase, 0

    def _draw(self) -> Start:
        start = draw_start(np.random.default_rng(self._seed + self.episode - 1))
        return start if self._puck_y_m is None else Start(start.joints, self._puck_y_m)

    def _report(self, snapshot: Snapshot, stamp_ns: int) -> None:
        """`outcome` running at the start of an episode, final at its end; times in ns of ROS time."""
        running = self._judge.outcome is Outcome.RUNNING
        self._send_report(
            {
                "episode": self.episode,
                "episodes": self._episodes,
                "outcome": self._judge.outcome.value,
                "finished": self.phase is Phase.FINISHED,
                "successes": self.successes,
                "seed": self._seed + self.episode - 1,
                "start_ns": self._start_ns,
                "end_ns": None if running else stamp_ns,
                "duration_s": 0.0 if running else (stamp_ns - self._start_ns) * 1e-9,
                "distance_m": float(np.hypot(*(snapshot.tool_xy - snapshot.puck_xy))),
                "rejected": dict(self._world.rejections),
                "real_time_factor": round(self._world.real_time_factor, 4),
            }
        )
