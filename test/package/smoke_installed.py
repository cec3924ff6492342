"""The package as it is installed: pytest test/package/smoke_installed.py, with the installation sourced.

Guards against: modules, launch files or executables that an installation lacks, messages that do not load, a lifecycle
node that works from the source tree only or with one ROS 2 distribution only.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from package.source_tree import PACKAGES, ROOT, list_files, list_modules
from ros.graph import Domain, Graph

TRANSITIONS = {"configure": 1, "activate": 3, "deactivate": 4, "cleanup": 2}
NODES = ("sim_robot", "policy_node")


@pytest.fixture(scope="session")
def prefix() -> Path:
    from ament_index_python.packages import get_package_prefix

    return Path(get_package_prefix("phyai_ros"))


@pytest.fixture
def graph(tmp_path):
    domain = Domain()
    graph = Graph(domain.number, tmp_path)
    yield graph
    graph.close()
    domain.close()


@pytest.fixture
def start(graph, prefix):
    """Start an installed node; all are interrupted at the end."""
    children: dict[str, subprocess.Popen] = {}

    def run(executable: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, str(prefix / "lib" / "phyai_ros" / executable), "--ros-args", *arguments]
        children[executable] = subprocess.Popen(command, env=graph.environment)
        return children[executable]

    yield run
    for child in children.values():
        child.kill()
        child.wait()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_installed(package, prefix):
    for name in list_modules(package):
        spec = importlib.util.find_spec(name)
        assert spec is not None and Path(spec.origin).is_relative_to(prefix), name


def test_messages_travel_through_their_type_support(prefix):
    from rclpy.serialization import deserialize_message, serialize_message

    from phyai_ros import msg

    assert Path(msg.__file__).is_relative_to(prefix)
    for path in (ROOT / "msg").glob("*.msg"):
        message = getattr(msg, path.stem)(epoch=7)
        assert deserialize_message(serialize_message(message), type(message)) == message


@pytest.mark.parametrize("folder", ["launch", "config"])
def test_shared_files_are_installed(folder, prefix):
    for path in list_files((".py", ".yaml", ".xml"), ROOT / folder):
        assert (prefix / "share" / "phyai_ros" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


@pytest.mark.timeout(300)
def test_the_node_drives_the_simulated_robot(graph, start, prefix):
    from phyai_ros.msg import ActionChunk, PolicyStatus

    robot = start("sim_robot", "-p", "episodes:=1", "-p", "exit_when_finished:=true")
    policy = start("policy_node", "--params-file", str(prefix / "share/phyai_ros/config/demo.yaml"))
    node, chunks, states = graph.node("listener"), [], []
    node.create_subscription(ActionChunk, "policy/chunk", chunks.append, 10)
    node.create_subscription(PolicyStatus, "policy/status", lambda status: states.append(status.state), 10)

    change_state(graph, node, "configure")
    assert not chunks
    change_state(graph, node, "activate")
    graph.spin_until(lambda: len(chunks) > 2 and states[-1] == "running", 60.0, "three chunks")
    assert len(chunks[-1].actions) == chunks[-1].rows * chunks[-1].columns > 0
    assert robot.wait(60.0) == 0, "after its only episode"
    change_state(graph, node, "deactivate")
    change_state(graph, node, "cleanup")
    policy.send_signal(signal.SIGINT)
    assert policy.wait(20.0) == 0


def change_state(graph: Graph, node, transition: str) -> None:
    from lifecycle_msgs.msg import Transition
    from lifecycle_msgs.srv import ChangeState

    client = node.create_client(ChangeState, "policy/change_state")
    graph.spin_until(client.service_is_ready, 60.0, "the lifecycle service")
    future = client.call_async(ChangeState.Request(transition=Transition(id=TRANSITIONS[transition])))
    graph.spin_until(future.done, 120.0, transition)
    assert future.result().success, transition
