"""Guards against: chunks beyond position or velocity limits, a slam from a far first row, refusals without a name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from phyai_core.types import ActionChunk, InferenceRequest, Leftover, Reason
from phyai_ros.chunk_guard import ChunkGuard
from phyai_ros.limit_sources import resolve_limits
from phyai_ros.settings import Limits, Start

LIMITS = {"max_velocity": (1.0, 2.0), "max_acceleration": (5.0, 5.0)}
BOUNDS = {"position_lower": (-1.0, -0.5), "position_upper": (1.0, 0.5)}
NAMES = ("yaw", "elbow")


def check(rows, measured=(0.0, 0.0), leftover=None, refuses=True, mask=None, last_command=None, **bounds):
    limits = resolve_limits(NAMES, Limits(**LIMITS, **bounds))
    guard = ChunkGuard(limits, 0.1, Start(max_step_rad=0.2), refuses, mask)
    rows = np.array(rows, np.float32)
    chunk = ActionChunk(0, 0, 0, 0, rows, rows, 100_000_000)
    command = measured if last_command is None else last_command
    obs = SimpleNamespace(measured=np.array(measured, np.float32), last_command=np.array(command, np.float32))
    return guard(chunk, InferenceRequest(0, 0, 0, 0, obs, leftover, 1))


def test_a_chunk_inside_all_limits_passes():
    assert check([[0.0, 0.1], [0.09, 0.29]], **BOUNDS) is None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0, 0], [0, 0.1], [0, 0.51]], "elbow: 0.510 in row 2 is beyond limits.position_upper"),
        ([[-1.01, 0], [-1.0, 0]], "yaw: -1.010 in row 0 is beyond limits.position_lower"),
        ([[0, 0], [0.11, 0]], "yaw: 1.10 per second after row 0 is beyond limits.max_velocity (1)"),
    ],
)
def test_beyond_a_limit_is_refused_by_name(rows, said):
    fault = check(rows, measured=rows[0], **BOUNDS)
    assert (fault.reason, fault.text) == (Reason.BAD_CHUNK, said)


def test_bounds_that_are_not_set_are_not_checked():
    assert check([[50.0, -70.0], [50.0, -70.0]], measured=(50.0, -70.0)) is None


def test_a_first_chunk_must_start_where_the_robot_stands():
    fault = check([[0.1, 0.3]])
    assert fault.reason is Reason.START_TOO_FAR and fault.text.startswith("elbow: the first action is 0.300 from")
    running = Leftover(np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32), 1, 8)
    assert check([[0.1, 0.3]], leftover=running) is None


def test_beside_a_limiter_only_the_start_is_checked():
    assert check([[0.0, 0.0], [5.0, 0.0]], refuses=False, **BOUNDS) is None
    assert check([[0.3, 0.0]], refuses=False).reason is Reason.START_TOO_FAR


def test_an_action_that_nothing_measures_is_not_compared():
    assert check([[0.0, 9.0]], refuses=False, mask=np.array([True, False])) is None


def test_a_chunk_planned_while_the_arm_lags_may_start_at_its_command():
    assert check([[0.25, 0.0]], measured=(0.0, 0.0), last_command=(0.2, 0.0)) is None
