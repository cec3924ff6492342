"""The policy node dies without a word while the arm moves.

Guards against an arm that runs on, or stops dead: the tail of the last trajectory must bring it to rest, on time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phyai_ros.sim.arm import CONTROL_DT_S
from ros.arm_policy import HORIZON, STEP_RAD

MAX_ACCELERATION = 2.0
PARAMETERS = (
    "inference.adapter:=turning",
    "rtc.mode:=none",
    "rtc.execution_horizon:=8",
    "cameras.keys:=[front]",
    "cameras.front.topic:=camera/front/image_raw",
    f"limits.max_acceleration:=[{MAX_ACCELERATION}]",
    "require_enable:=true",
)


@pytest.fixture
def start(graph):
    """Start a Python program as a node."""
    children = []

    def run(program: list[str], parameters: tuple[str, ...] = ()) -> subprocess.Popen:
        arguments = [text for parameter in parameters for text in ("-p", parameter)]
        command = [sys.executable, *program, "--ros-args", *arguments]
        children.append(subprocess.Popen(command, env=graph.environment))
        return children[-1]

    yield run
    for child in children:
        child.kill()
        child.wait()


def change_state(graph, node, transition_id: int) -> None:
    from lifecycle_msgs.msg import Transition
    from lifecycle_msgs.srv import ChangeState

    client = node.create_client(ChangeState, "policy/change_state")
    graph.spin_until(client.service_is_ready, what="the lifecycle service")
    future = client.call_async(ChangeState.Request(transition=Transition(id=transition_id)))
    graph.spin_until(future.done, what=f"transition {transition_id}")
    assert future.result().success


def stamp_s(stamp) -> float:
    return stamp.sec + stamp.nanosec * 1e-9


def test_the_arm_comes_to_rest_by_the_tail_of_its_last_trajectory(graph, start):
    from lifecycle_msgs.msg import Transition
    from sensor_msgs.msg import JointState
    from trajectory_msgs.msg import JointTrajectory

    start(["-m", "phyai_ros.sim_robot"])
    policy = start([str(Path(__file__).with_name("arm_policy.py"))], PARAMETERS)
    node, joints, trajectories = graph.node("listener"), [], []
    node.create_subscription(JointState, "joint_states", joints.append, 50)
    node.create_subscription(JointTrajectory, "joint_trajectory_controller/joint_trajectory", trajectories.append, 50)
    for transition_id in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
        change_state(graph, node, transition_id)
    graph.spin_until(lambda: len(trajectories) > 4 and joints[-1].velocity[0] > 0.2, what="motion")

    policy.kill()
    policy.wait()
    killed_s = node.get_clock().now().nanoseconds * 1e-9
    graph.spin_until(lambda: stamp_s(joints[-1].header.stamp) > killed_s + 2.0, what="two seconds")
    last = trajectories[-1]
    end_s = stamp_s(last.header.stamp) + stamp_s(last.points[-1].time_from_start)
    speed = float(STEP_RAD[0]) / CONTROL_DT_S
    assert end_s < killed_s + (HORIZON + 2) * CONTROL_DT_S + speed / MAX_ACCELERATION
    times_s = np.array([stamp_s(message.header.stamp) for message in joints])
    speeds = np.abs([message.velocity for message in joints]).max(axis=1)
    assert speeds[times_s > end_s + 0.3].max() < 0.01
    assert speeds[(times_s > killed_s) & (times_s < end_s - 0.4)].min() > 0.15  # it did not stop dead either
