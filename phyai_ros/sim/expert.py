"""The demonstrator: arm kinematics, and a planner that passes the post on a given side and stays on the puck.

Points on the table are complex numbers, x + iy in metres, which makes a plan a handful of additions.
The tool points straight down at TOOL_HEIGHT_M, so a point on the table fixes the four joints.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from phyai_ros.sim.arm import (
    BELT_X_M,
    CONTROL_DT_S,
    FOREARM_M,
    POST_X_M,
    PUCK_SPEED_M_S,
    SHOULDER_HEIGHT_M,
    TOOL_M,
    UPPER_ARM_M,
    WRIST_M,
)

TOOL_HEIGHT_M = 0.075
CRUISE_M_S = 0.26
TOP_SPEED_M_S = 0.32  # while following the puck
ACCELERATION_M_S2 = 2.0

COMMIT_X_M = 0.235  # up to here the path shows nothing of the side to come
LANE_M = 0.085  # the tool passes the post this far beside its centre
CLEAR_M = 0.075  # beside the post from here on
PAST_X_M = POST_X_M + 0.03  # behind the post from here on
FOLLOW_GAIN_HZ = 4.0


def plan(tool: complex, velocity: complex, puck_y_m: float, side: int, horizon: int) -> NDArray[np.complex128]:
    """Where the tool goes: its points [H] at the ends of the next H control ticks.

    `tool` and `velocity` are the commanded ones now, `puck_y_m` where the puck is now, `side` +1 left of the post, -1
    right of it.
    """
    points = np.empty(horizon, np.complex128)
    for i in range(horizon):
        puck = complex(BELT_X_M, puck_y_m + PUCK_SPEED_M_S * CONTROL_DT_S * i)
        change = _wanted_velocity(tool, puck, side) - velocity
        velocity += _limit(change, ACCELERATION_M_S2 * CONTROL_DT_S)
        tool += velocity * CONTROL_DT_S
        points[i] = tool
    return points


def _wanted_velocity(tool: complex, puck: complex, side: int) -> complex:
    if tool.real >= PAST_X_M:
        return _follow(tool, puck)
    if tool.real < COMMIT_X_M and abs(tool.imag) < 0.05:
        return complex(CRUISE_M_S, -3.0 * tool.imag)
    if side * tool.imag < CLEAR_M and tool.real < POST_X_M - 0.02:
        return _swerve(tool, side)
    return _toward(tool, complex(PAST_X_M + 0.03, side * LANE_M))


def _swerve(tool: complex, side: int) -> complex:
    too_close = tool.real > POST_X_M - 0.05 and side * tool.imag < 0.045
    if too_close:
        return complex(-0.05, side * CRUISE_M_S)
    return _toward(tool, complex(POST_X_M - 0.015, side * LANE_M))


def _follow(tool: complex, puck: complex) -> complex:
    """The puck's own velocity, plus one that closes the gap."""
    gap = puck - tool
    closing = _limit(gap * FOLLOW_GAIN_HZ, CRUISE_M_S)
    return _limit(complex(0.0, PUCK_SPEED_M_S) + closing, TOP_SPEED_M_S)


def _toward(tool: complex, goal: complex) -> complex:
    gap = goal - tool
    return gap * (CRUISE_M_S / max(abs(gap), 1e-6))


def _limit(vector: complex, largest: float) -> complex:
    length = abs(vector)
    return vector if length <= largest else vector * (largest / length)


def joints_for(points: NDArray[np.complex128] | complex) -> NDArray[np.float32]:
    """Inverse kinematics: points [...] on the table -> joints [..., 4] (POLICY_JOINTS, rad), elbow up, tool vertical.

    A point out of reach gives the arm stretched toward it.
    """
    points = np.asarray(points, np.complex128)
    reach = np.abs(points)
    height = TOOL_HEIGHT_M + TOOL_M + WRIST_M - SHOULDER_HEIGHT_M  # of the wrist joint above the shoulder
    square = reach**2 + height**2
    cosine = (square - UPPER_ARM_M**2 - FOREARM_M**2) / (2 * UPPER_ARM_M * FOREARM_M)
    elbow = np.arccos(np.clip(cosine, -1.0, 1.0))
    above = np.arctan2(height, reach) + np.arctan2(FOREARM_M * np.sin(elbow), UPPER_ARM_M + FOREARM_M * np.cos(elbow))
    shoulder = math.pi / 2 - above
    return np.stack([np.angle(points), shoulder, elbow, math.pi - shoulder - elbow], axis=-1).astype(np.float32)


def point_for(joints: NDArray[np.floating]) -> NDArray[np.complex128]:
    """Forward kinematics: joints [..., 4 or more] in rad -> points [...] of the tool tip on the table."""
    joints = np.asarray(joints, np.float64)
    pitch = np.cumsum(joints[..., 1:4], axis=-1)  # of upper arm, forearm, tool, from the vertical
    reach = np.sin(pitch) @ np.array([UPPER_ARM_M, FOREARM_M, WRIST_M + TOOL_M])
    return reach * np.exp(1j * joints[..., 0])
