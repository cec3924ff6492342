"""What every output promises, whatever its controller: a new one is checked here by being in the table of outputs.

Guards against: messages before the first row or after silence, numbers that are not finite, columns in the wrong order,
motion beyond the braking limit on hold or stop, an output that never comes to rest, a reference that jumps, parts of a
combined output that move on alone.
"""

from __future__ import annotations

import numpy as np
import pytest

from phyai_core.types import Action, ActionChunk, Command, Fault, Reason
from phyai_ros.outputs import OUTPUTS, load_output
from phyai_ros.outputs.base import OutputConfig
from phyai_ros.outputs.combined import CombinedOutput, Part
from ros.standins import provide

DT_NS, HORIZON = 40_000_000, 32
MAX_ACCELERATION = 4.0
RESTS_AT_ONCE = ("gripper_command", "parallel_gripper_command", "servo_pose")


@pytest.fixture(autouse=True, scope="module")
def control_msgs():
    provide("control_msgs")


def make(name: str, sent: list, reverse: bool = False, **changes):
    kind = load_output(name)
    joints = tuple("abcdefg"[: kind.columns[0] if kind.columns else 2])
    fields = {"joint_names": joints, "dt_s": DT_NS * 1e-9, "max_acceleration": (MAX_ACCELERATION,)}
    config = OutputConfig(**fields, controller_joints=joints[::-1] if reverse else joints, **changes)
    return kind(config, sent.append)


def make_combined(sent: list):
    joints, dt_s = ("a", "b", "finger"), DT_NS * 1e-9
    parts = []
    for name, columns in (("joint_trajectory", [0, 1]), ("gripper_command", [2])):
        part = Part(name, np.array(columns), None)
        config = OutputConfig(tuple(joints[c] for c in columns), dt_s, (MAX_ACCELERATION,))
        part.output = load_output(name)(config, part.outbox.append)
        parts.append(part)
    return CombinedOutput(OutputConfig(joints, dt_s, (MAX_ACCELERATION,)), parts, [sent.append] * 2)


class Driver:
    """Runs rows of a slow rise through an output, one tick at a time."""

    def __init__(self, name: str, **changes) -> None:
        self.sent: list = []
        self.output = make_combined(self.sent) if name == "combined" else make(name, self.sent, **changes)
        self.joints = len(self.output.config.joint_names)
        self.output.start(np.zeros(self.joints), 0)
        rise = (1 - np.cos(np.arange(1, HORIZON + 1) * 0.1)) * 0.1  # 0.1 rad/tick^2 at most: 0.6 rad/s^2
        rows = 0.2 + np.outer(rise, np.linspace(1.0, 0.5, self.joints)).astype(np.float32) - 0.2
        if name == "servo_pose":
            rows[:, 3:] = [0.0, 0.0, 0.0, 1.0]
        self.chunk = ActionChunk(1, 1, 0, 0, rows, rows, DT_NS)
        self.k = -1

    def tick(self, action: Action, index: int | None = None, chunk: ActionChunk | None = None) -> Fault | None:
        self.k += 1
        chunk = chunk or self.chunk
        index = self.k if index is None else index
        run = {"row": chunk.actions[index], "chunk": chunk, "index": index} if action is Action.RUN else {}
        fault = self.output.update(Command(action, self.k, 1, **run), self.k * DT_NS + 10**18)
        for sub in range(1, self.output.sub_ticks):
            self.output.interpolate(sub / self.output.sub_ticks, self.k * DT_NS + 10**18)
        return fault


NAMES = [*sorted(OUTPUTS), "combined"]


@pytest.fixture(params=NAMES)
def driver(request):
    return Driver(request.param)


def numbers_in(message) -> list[float]:
    """Every float of a message, whatever its shape."""
    if isinstance(message, float):
        return [message]
    if hasattr(message, "get_fields_and_field_types"):
        return [x for field in message.get_fields_and_field_types() for x in numbers_in(getattr(message, field))]
    if hasattr(message, "typecode") or isinstance(message, (list, tuple)):
        return [x for item in message for x in numbers_in(item)]
    return []


def test_nothing_is_sent_before_the_first_row(driver):
    for action in (Action.NONE, Action.HOLD, Action.STOP):
        assert driver.tick(action) is None
    assert driver.sent == [] and driver.output.at_rest


def test_rows_are_sent_and_every_number_is_finite(driver):
    for _ in range(12):
        assert driver.tick(Action.RUN) is None
    assert driver.sent
    assert all(np.isfinite(numbers_in(message)).all() for message in driver.sent)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_row_that_is_not_finite_is_a_fault_and_never_leaves(driver, bad):
    for _ in range(3):
        driver.tick(Action.RUN)
    rows = driver.chunk.actions.copy()
    rows[3:, -1] = bad
    fault = driver.tick(Action.RUN, 3, ActionChunk(1, 2, 0, 0, rows, rows, DT_NS))
    assert fault.reason is Reason.BAD_CHUNK
    assert all(np.isfinite(numbers_in(message)).all() for message in driver.sent)
    reference = driver.output.reference_at(driver.k + 1)
    assert np.isfinite(reference.position).all() and np.isfinite(reference.velocity).all()


@pytest.mark.parametrize("action", [Action.HOLD, Action.STOP, Action.NONE])
def test_it_comes_to_rest_within_the_braking_limit_and_stays(driver, action):
    for _ in range(8):
        driver.tick(Action.RUN)
    speed = np.abs(driver.output.reference_at(driver.k).velocity).max()
    ticks = int(np.ceil(max(speed, 1.0) / MAX_ACCELERATION / (DT_NS * 1e-9))) + 2
    for _ in range(ticks):
        driver.tick(action)
    assert driver.output.at_rest
    rest = driver.output.reference_at(driver.k + 1)
    driver.tick(action)
    np.testing.assert_allclose(driver.output.reference_at(driver.k + 1).position, rest.position)
    np.testing.assert_allclose(driver.output.reference_at(driver.k + 1).velocity, 0.0)


@pytest.mark.parametrize("action", [Action.STOP, Action.NONE])
def test_once_stopped_it_is_silent(driver, action):
    for _ in range(8):
        driver.tick(Action.RUN)
    for _ in range(12):
        driver.tick(action)
    sent = len(driver.sent)
    for _ in range(10):
        driver.tick(action)
    assert len(driver.sent) == sent


def test_after_a_stop_it_starts_again_from_where_it_is_told_to_stand(driver):
    for _ in range(8):
        driver.tick(Action.RUN)
    for _ in range(12):
        driver.tick(Action.STOP)
    sent = len(driver.sent)
    driver.output.start(np.full(driver.joints, 0.05), 0)
    np.testing.assert_allclose(driver.output.reference_at(driver.k + 1).position, 0.05)
    driver.tick(Action.RUN)
    assert len(driver.sent) > sent


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*RESTS_AT_ONCE, "servo_twist", "combined")])
def test_the_reference_never_steps(name):
    driver = Driver(name)
    references = []
    for action in [Action.RUN] * 10 + [Action.HOLD] * 8:
        driver.tick(action)
        references.append(driver.output.reference_at(driver.k + 1).position)
    steps = np.abs(np.diff(references, axis=0)).max()
    assert steps < 0.012  # the rise itself: 0.01 per tick


@pytest.mark.parametrize("name", ["joint_trajectory", "follow_joint_trajectory", "forward_command", "servo_joint_jog"])
def test_joints_go_out_in_the_order_of_the_controller(name):
    driver = Driver(name, reverse=True)
    driver.tick(Action.RUN)
    message = getattr(driver.sent[0], "trajectory", driver.sent[0])
    point = message.points[0] if hasattr(message, "points") else message
    values = next(getattr(point, field) for field in ("positions", "data", "velocities") if hasattr(point, field))
    assert values[1] > values[0] > 0  # joint a, the larger one, comes second
    assert list(getattr(message, "joint_names", ["b", "a"])) == ["b", "a"]


def test_the_parts_of_a_combined_output_go_out_together_or_not_at_all():
    driver = Driver("combined")
    driver.tick(Action.RUN)
    assert [type(message).__name__ for message in driver.sent] == ["JointTrajectory", "GripperCommand_Goal"]
    rows = driver.chunk.actions.copy()
    rows[5, 2] = np.nan  # the gripper alone
    before = driver.output.reference_at(driver.k + 1).position
    assert driver.tick(Action.RUN, 1, ActionChunk(1, 2, 0, 0, rows, rows, DT_NS)).reason is Reason.BAD_CHUNK
    assert len(driver.sent) == 2
    np.testing.assert_allclose(driver.output.reference_at(driver.k).position, before)


def test_trajectories_and_streamed_commands_do_not_mix():
    parts = [Part(n, np.array([0]), make(n, [])) for n in ("joint_trajectory", "forward_command")]
    with pytest.raises(ValueError, match=r"outputs.keys: .*forward_command.* cannot be combined"):
        CombinedOutput(OutputConfig(("a", "b"), 0.04, (1.0,)), parts, [print, print])


def test_a_gripper_gets_few_goals_and_none_for_noise():
    driver = Driver("gripper_command", max_effort=5.0)
    for _ in range(25):  # one second
        driver.tick(Action.RUN)
    assert 2 <= len(driver.sent) <= 5
    assert driver.sent[-1].command.max_effort == 5.0
    still = ActionChunk(1, 2, 0, 0, np.full((HORIZON, 1), driver.sent[-1].command.position + 1e-3, np.float32), None, 0)
    count = len(driver.sent)
    for _ in range(20):
        driver.tick(Action.RUN, 0, still)
    assert len(driver.sent) == count


def test_servo_commands_carry_stamp_frame_and_unit():
    driver = Driver("servo_twist", frame="tool0", rate_hz=100)
    for _ in range(5):
        driver.tick(Action.RUN)
    message = driver.sent[-1]
    assert message.header.frame_id == "tool0" and message.header.stamp.sec == 10**9
    np.testing.assert_allclose(message.twist.linear.x, driver.chunk.actions[4, 0], rtol=1e-6)
    assert len(driver.sent) == 20
    jog = Driver("servo_joint_jog", rate_hz=100)
    for _ in range(2):
        jog.tick(Action.RUN)
    step = jog.chunk.actions[1] - jog.chunk.actions[0]
    np.testing.assert_allclose(jog.sent[-1].velocities, step / 0.04, rtol=1e-4)
