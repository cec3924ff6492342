"""The launch files, run unchanged: by launch_ros where it is installed, else by the test double.

Guards against a node that never gets active, that starts again by itself, that takes text for numbers, or that leaves
processes and bad exit codes behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phyai_ros.cli.processes import describe_exit

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).parent / "launch_runner.py"
DEMO_CONFIG = ROOT / "config" / "demo.yaml"
START_S, STOP_S, ASK_AGAIN_S = 60.0, 30.0, 3.0


class Launched:
    """A running launch with its output in a file."""

    def __init__(self, environment: dict[str, str], log: Path, file: str, *arguments: str) -> None:
        self._log = log
        command = [sys.executable, str(RUNNER), file, *arguments]
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                command, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def interrupt(self) -> int:
        """As Ctrl-C in a terminal, which signals the whole group; the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(STOP_S)

    def environment_of(self, executable: str) -> dict[str, str]:
        """What the child process `executable` was started with."""
        for folder in Path("/proc").glob("[0-9]*"):
            status, command = (folder / "stat").read_text(), (folder / "cmdline").read_text()
            if int(status.rpartition(")")[2].split()[1]) == self.process.pid and executable in command:
                pairs = (folder / "environ").read_text().split("\0")
                return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        raise AssertionError(f"no child {executable}")


@pytest.fixture
def launch(graph, tmp_path):
    started = []

    def start(file: str, *arguments: str, **environment: str) -> Launched:
        log = tmp_path / f"launch_{len(started)}.log"
        started.append(Launched({**graph.environment, **environment}, log, str(ROOT / "launch" / file), *arguments))
        return started[-1]

    yield start
    for launched in started:
        if launched.process.poll() is None:
            launched.interrupt()
        print(launched.output)  # pytest shows it when the test failed


class Services:
    """Calls on the launched node. An answer can get lost while the two are still finding each other."""

    def __init__(self, graph, name: str) -> None:
        from lifecycle_msgs.srv import ChangeState, GetState
        from rcl_interfaces.srv import GetParameters

        self._graph = graph
        node = graph.node("tester")
        self._get_state = node.create_client(GetState, f"{name}/get_state")
        self._change_state = node.create_client(ChangeState, f"{name}/change_state")
        self._get_parameters = node.create_client(GetParameters, f"{name}/get_parameters")

    def _ask(self, client, request):
        self._graph.spin_until(client.service_is_ready, START_S, "the service of the launched node")
        futures = [client.call_async(request)]
        asked_s = time.monotonic()

        def answer():
            nonlocal asked_s
            if time.monotonic() - asked_s > ASK_AGAIN_S:
                futures.append(client.call_async(request))
                asked_s = time.monotonic()
            return next((future.result() for future in futures if future.done()), None)

        return self._graph.spin_until(answer, START_S, "an answer")

    @property
    def state(self) -> str:
        return self._ask(self._get_state, self._get_state.srv_type.Request()).current_state.label

    def wait_for_state(self, state: str) -> None:
        self._graph.spin_until(lambda: self.state == state, START_S, state)

    def request(self, transition_id: int) -> None:
        """Ask for a transition; whether it came about, its state or its log tells."""
        from lifecycle_msgs.msg import Transition

        self._graph.spin_until(self._change_state.service_is_ready, START_S, "the lifecycle service")
        self._change_state.call_async(self._change_state.srv_type.Request(transition=Transition(id=transition_id)))

    def parameters(self, *names: str) -> list:
        return self._ask(self._get_parameters, self._get_parameters.srv_type.Request(names=names)).values


def test_the_policy_gets_active_in_its_namespace_beside_its_dashboard_and_ends_cleanly(graph, launch):
    name = ("namespace:=left", "node_name:=policy")
    page = ("dashboard:=true", "dashboard_port:=0")
    launched = launch("policy.launch.py", f"params_file:={DEMO_CONFIG}", *name, *page, "log_level:=warn")
    services = Services(graph, "/left/policy")
    services.wait_for_state("active")
    assert "dashboard of /left/policy: http://127.0.0.1:" in launched.output
    profile = launched.environment_of("policy_node")["FASTDDS_DEFAULT_PROFILES_FILE"]
    assert Path(profile).name == "fastdds_shm.xml" and Path(profile).is_file()
    assert launched.interrupt() == 0, launched.output


def test_a_failed_configure_is_told_once_and_text_stays_text(graph, launch):
    """0483 is the name of a folder and true that of an adapter, though YAML would read both as something else."""
    from lifecycle_msgs.msg import Transition
    from rcl_interfaces.msg import ParameterType

    launched = launch(
        "policy.launch.py",
        f"params_file:={DEMO_CONFIG}",
        "checkpoint:=0483",
        "device:=cpu",
        "overrides:={prompt: 'true', rtc.mode: none, rtc.execution_horizon: 9}",
    )
    services = Services(graph, "/policy")
    graph.spin_until(lambda: "cannot configure" in launched.output, START_S, "the error")
    assert services.state == "unconfigured"
    checkpoint, prompt, mode, horizon = services.parameters(
        "inference.checkpoint", "prompt", "rtc.mode", "rtc.execution_horizon"
    )
    assert checkpoint.type == prompt.type == mode.type == ParameterType.PARAMETER_STRING
    assert (checkpoint.string_value, prompt.string_value, mode.string_value) == ("0483", "true", "none")
    assert horizon.integer_value == 9
    assert launched.output.count("cannot configure") == 1
    assert "0483" in launched.output
    services.request(Transition.TRANSITION_CONFIGURE)  # our own attempt: the node still works
    graph.spin_until(lambda: launched.output.count("cannot configure") == 2, what="the second error")
    assert launched.interrupt() == 0, launched.output


def test_without_autostart_the_node_waits_and_a_deactivated_one_stays_so(graph, launch):
    from lifecycle_msgs.msg import Transition

    launched = launch(
        "policy.launch.py",
        f"params_file:={DEMO_CONFIG}",
        "autostart:=false",
        FASTDDS_DEFAULT_PROFILES_FILE="/dev/null",
    )
    services = Services(graph, "/policy")
    assert services.state == "unconfigured"
    assert launched.environment_of("policy_node")["FASTDDS_DEFAULT_PROFILES_FILE"] == "/dev/null"
    for transition, state in (
        (Transition.TRANSITION_CONFIGURE, "inactive"),
        (Transition.TRANSITION_ACTIVATE, "active"),
        (Transition.TRANSITION_DEACTIVATE, "inactive"),
    ):
        services.request(transition)
        services.wait_for_state(state)
    assert launched.interrupt() == 0, launched.output


@pytest.mark.parametrize(
    "argument", ["params_file:=/no/such/file.yaml", "autostart:=perhaps", "overrides:=rtc", "use_sim_time:=1"]
)
def test_a_wrong_argument_ends_the_launch_with_a_sentence(launch, argument):
    launched = launch("policy.launch.py", argument)
    assert launched.process.wait(START_S) != 0
    name, _, value = argument.partition(":=")
    assert f"{name} is '{value}'" in launched.output


def test_the_demo_runs_an_episode_in_the_mode_that_was_asked_for(graph, launch):
    from std_msgs.msg import String

    from phyai_ros.msg import PolicyStatus

    reports, statuses = [], []
    listener = graph.node("listener")
    listener.create_subscription(String, "sim_robot/episode", lambda message: reports.append(message.data), 10)
    listener.create_subscription(PolicyStatus, "policy/status", statuses.append, 10)
    launched = launch("demo.launch.py", "episodes:=1", "mode:=none", "seed:=3")
    graph.spin_until(lambda: any('"finished": true' in report for report in reports), START_S, "the end of the episode")
    assert {status.rtc_mode for status in statuses} == {"none"}
    assert any('"seed": 3' in report for report in reports)
    assert launched.process.wait(STOP_S) == 0, launched.output


def test_a_demo_whose_robot_cannot_start_fails(launch):
    launched = launch("demo.launch.py", "seed:=-1")
    assert launched.process.wait(START_S) == 1
    assert "seed: -1 is out of bounds" in launched.output
    assert "the simulated robot ended with exit code 1" in launched.output


def test_the_double_refuses_what_it_does_not_know(tmp_path):
    """So a launch file cannot come to rely on API that was never tried."""
    pytest.importorskip("rclpy")
    from ros.launch_runner import HAVE_LAUNCH_ROS

    if HAVE_LAUNCH_ROS:
        pytest.skip("launch_ros itself runs the files here")
    (tmp_path / "odd.launch.py").write_text("from launch.actions import GroupAction\n")
    command = [sys.executable, str(RUNNER), str(tmp_path / "odd.launch.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, describe_exit(done.returncode)
    assert "ImportError" in done.stderr
