"""Reports of users that need a live graph or a process of their own; see docs/user_reports.md for all of them."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from trajectory_msgs.msg import JointTrajectory

from phyai_ros.msg import PolicyStatus
from ros.fake_policy import FakePolicy
from ros.policy_rig import PolicyRig, is_braking

ROOT = Path(__file__).parents[2]
SLOW_S = 1.0


def test_r10_a_publisher_with_another_reliability_is_named_within_two_seconds():
    with PolicyRig(**{"cameras.front.qos": "reliable", "cameras.front.topic": "other/image"}) as rig:
        best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        rig.robot.create_publisher(Image, "other/image", best_effort)
        assert rig.node.trigger_configure().name == "SUCCESS"
        rig.wait(lambda: rig.node.count_publishers("other/image"), "the publisher")
        rig.activate()
        rig.wait_for_news("diagnostics", 2)  # one a second
        pairs = [pair for message in rig.robot.heard["diagnostics"] for pair in message.status[0].values]
        warnings = [pair.value for pair in pairs if pair.key.startswith("warning")]
        (warning, *_) = [text for text in warnings if "fake_robot on /other/image do not arrive" in text]
        assert "reliab" in warning.lower()


def test_r24_the_first_inference_is_slow_while_configuring_and_not_after(monkeypatch):
    calls = []
    preprocess = FakePolicy.preprocess

    def slow_once(self, obs):
        calls.append(obs.stamp_ns)
        if len(calls) == 1:
            time.sleep(SLOW_S)
        return preprocess(self, obs)

    monkeypatch.setattr(FakePolicy, "preprocess", slow_once)
    with PolicyRig(**{"inference.warmup_runs": 2}) as rig:
        rig.start()
        assert calls[:2] == [0, 0], "the warm-up comes first, with blank observations"
        rig.wait_for_news("timing", 4)
        assert rig.robot.heard["timing"][0].l_inference < SLOW_S


def test_r25_launch_activates_on_the_event_of_having_configured_and_not_by_time():
    source = (ROOT / "launch" / "policy.launch.py").read_text()
    names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert "OnStateTransition" in names and "TimerAction" not in names
    event = source[source.index("OnStateTransition(") :]
    assert 'goal_state="inactive"' in event and "TRANSITION_ACTIVATE" in event


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_r26_an_interrupted_node_stops_the_robot_and_ends_cleanly(graph, signals):
    states, trajectories = [], []
    node = graph.node("listener")
    node.create_subscription(PolicyStatus, "policy/status", lambda message: states.append(message.state), 10)
    node.create_subscription(JointTrajectory, "joint_trajectory_controller/joint_trajectory", trajectories.append, 50)
    options = ["inference.adapter:=turning", "rtc.mode:=none", "rtc.execution_horizon:=8", "output.profile:=splice"]
    options += ["cameras.keys:=[front]", "cameras.front.topic:=camera/front/image_raw"]
    arguments = [text for option in options for text in ("-p", option)]
    policy = [sys.executable, str(Path(__file__).with_name("arm_policy.py")), "autostart", "--ros-args", *arguments]
    robot = subprocess.Popen([sys.executable, "-m", "phyai_ros.sim_robot"], env=graph.environment)
    process = subprocess.Popen(policy, env=graph.environment, stderr=subprocess.PIPE, text=True)
    try:
        graph.spin_until(lambda: "running" in states and len(trajectories) > 2, 40, what="motion")
        for number in signals:
            process.send_signal(number)
        graph.spin_until(lambda: process.poll() is not None, what="the end of the process")
        graph.spin_until(lambda: states[-1] == "inactive", what="the last status")
    finally:
        process.kill()
        robot.kill()
        robot.wait()
    assert process.returncode == 0 and "Traceback" not in process.stderr.read()
    assert is_braking(trajectories[-1]) and len(trajectories[-1].points) < 24


def test_r28_every_name_of_a_node_is_in_its_namespace():
    with PolicyRig(node_namespace="/left") as rig:
        assert rig.node.trigger_configure().name == "SUCCESS"
        name, namespace = rig.node.get_name(), rig.node.get_namespace()
        services = rig.node.get_service_names_and_types_by_node
        rig.wait(lambda: any("pause" in service for service, _ in services(name, namespace)), "the graph")
        ours = [topic for topic, _ in rig.node.get_publisher_names_and_types_by_node(name, namespace)]
        ours += [topic for topic, _ in rig.node.get_subscriber_names_and_types_by_node(name, namespace)]
        ours += [service for service, _ in rig.node.get_service_names_and_types_by_node(name, namespace)]
        shared = {"/diagnostics", "/rosout", "/parameter_events", "/clock"}
        assert [topic for topic in ours if not topic.startswith("/left/") and topic not in shared] == []
        assert "/left/joint_trajectory_controller/joint_trajectory" in ours and "/left/joint_states" in ours
