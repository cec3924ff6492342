"""Guards against: a node that starts with wrong settings, tracebacks for a mistake, Ctrl-C that leaves no stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phyai_ros.cli.main import run
from phyai_ros.msg import PolicyStatus

DEMO = Path(__file__).parents[2] / "config" / "demo.yaml"


def start(graph, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "phyai_ros.cli.main", "run", *options]
    return subprocess.Popen(command, env=graph.environment, stderr=subprocess.PIPE, text=True)


def test_runs_until_interrupted_and_says_goodbye(graph):
    states: list[str] = []
    graph.node("listener").create_subscription(PolicyStatus, "policy/status", lambda m: states.append(m.state), 10)
    process = start(graph, "--params-file", str(DEMO))
    try:
        graph.spin_until(lambda: "disabled" in states or process.poll() is not None, what="a status")
        process.send_signal(signal.SIGINT)
        graph.spin_until(lambda: process.poll() is not None, what="the end of the process")
        graph.spin_until(lambda: states[-1] == "inactive", what="the last status")
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in process.stderr.read()


def test_wrong_settings_end_it_with_a_sentence(graph, tmp_path):
    params = tmp_path / "wrong.yaml"
    params.write_text("/**:\n  ros__parameters:\n    rtc: {mode: magic}\n")
    process = start(graph, "--params-file", str(params))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rtc.mode: 'magic' is not allowed" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/**:\n  ros_parameters:\n    rtc: {mode: none}\n", "has no section ros__parameters"),
        ("/**:\n  ros__parameters: {rtc: {mode: none}\n", "cannot be read as a parameter file"),
        ("/**:\n\tros__parameters:\n", "cannot be read as a parameter file"),
        ("/other_node:\n  ros__parameters:\n    rtc: {mode: none}\n", "none for the node /policy"),
        ("", "is not a parameter file"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(text, said, tmp_path, capsys):
    params = tmp_path / "wrong.yaml"
    params.write_text(text)
    assert run(["run", "--params-file", str(params)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
