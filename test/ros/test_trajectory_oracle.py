"""Chunks through models of both controller families, with a lagging arm, at every inference delay from 40 to 320 ms.

Guards against: rejected trajectories, command steps beyond the velocity limit, rough seams and stops, an arm that
runs late by the inference delay or by the way of a message.
"""

from __future__ import annotations

import numpy as np
import pytest

from phyai_core.types import Action, Fault, Reason
from ros.output_rig import DT_NS, MAX_ACCELERATION, TrajectoryRig, ramp, wave

FAMILIES = {"replace": ("replace", True, "splice"), "splice": ("splice", True, "splice")}
FAMILIES["replace-from-measured"] = ("replace", False, "replace")
PERIOD_S = 0.01
MAX_VELOCITY = 1.0
IDEAL_ACCELERATION = 0.3 * np.pi**2  # of the wave
STALE = Fault(Reason.INPUT_STALE, "camera front: 0.31 s old, allowed 0.2 s")


@pytest.mark.parametrize("delay", range(1, 9))
@pytest.mark.parametrize("family", FAMILIES)
def test_smooth_and_on_time_at_any_delay(family, delay):
    rig = TrajectoryRig(*FAMILIES[family], delay=delay)
    start = next(command.tick for command in rig.run(120) if command.action is Action.RUN)
    references = np.array(rig.robot.references)
    assert rig.robot.rejections == []
    speeds = np.abs(np.diff(references, axis=0)) / PERIOD_S
    assert speeds.max() <= MAX_VELOCITY
    assert rig.robot.largest_acceleration <= 3 * IDEAL_ACCELERATION
    times = (np.array(rig.robot.times_ns) - rig.stamp_ns(start)) / DT_NS
    ideal = wave(np.clip(times, 0, None))
    settled = times > 10
    lag = np.sqrt(np.mean((references - ideal)[settled] ** 2))
    assert lag < 0.005
    assert len(rig.messages) <= 120 / 8 + 3  # a trajectory per chunk, not one per tick


@pytest.mark.parametrize("curve", [wave, ramp])
@pytest.mark.parametrize("family", FAMILIES)
def test_braking_stays_near_the_deceleration_asked_for_whenever_it_begins(family, curve):
    peaks = []
    for begin in range(20, 60, 3):
        rig = TrajectoryRig(*FAMILIES[family], delay=6, curve=curve)
        rig.run(begin)
        before = len(rig.robot.speeds) - 1
        rig.run(25, fault=STALE)
        speeds = np.array(rig.robot.speeds[before:])
        peaks.append(np.abs(np.diff(speeds, axis=0)).max() / PERIOD_S)
        assert not speeds[-1].any() and rig.robot.rejections == []
    assert max(peaks) <= 1.5 * MAX_ACCELERATION
