"""The demo as a process of its own, from its start to every kind of end.

Guards against a demo that leaves nodes running, blames the policy for what others do, or ends with a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "phyai_ros.cli.main", "demo", "--headless"]


@pytest.fixture
def start_demo(graph, tmp_path):
    """Start the demo in the graph of the test, its files in `tmp_path`; it does not outlive the test."""
    started = []

    def start(*options: str) -> subprocess.Popen:
        command = [*DEMO, "--plots", str(tmp_path), *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=graph.environment, stdout=pipe, stderr=pipe, text=True, cwd=ROOT))
        return started[-1]

    yield start
    for demo in started:
        demo.kill()
        demo.communicate()


def children_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
        except FileNotFoundError:
            continue
    return found


def is_running(log: Path) -> bool:
    return log.is_file() and "running" in log.read_text()


@pytest.mark.slow
def test_one_episode_succeeds_and_leaves_figures_and_pictures(start_demo, tmp_path):
    report = tmp_path / "out.json"
    options = ("--episodes", "1", "--seed", "0", "--json", str(report), "--min-successes", "1")
    demo = start_demo(*options)
    out, err = demo.communicate(timeout=110)
    assert demo.returncode == 0, out + err
    figures = json.loads(report.read_text())
    assert (figures["mode"], figures["rtc_mode"], figures["episodes"], figures["successes"]) == (
        "rtc",
        "identity",
        1,
        1,
    )
    assert figures["chunks"] >= 3 and figures["starved_ticks"] == 0
    assert figures["bound"] == "environment" and figures["x"] > 1
    assert figures["l_inference_ms"]["p50"] > 0 and figures["jerk"] > 0 and figures["seam_mrad"]["mean"] > 0
    assert "episode 1 of 1: success" in out
    for name in ("command", "chunks", "roofline"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert (tmp_path / "run_rtc.npz").is_file()


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_its_children_without_a_traceback(graph, start_demo, tmp_path):
    demo = start_demo("--episodes", "100")
    graph.spin_until(lambda: is_running(tmp_path / "logs" / "policy_node_rtc.log"), what="a running policy")
    children = children_of(demo.pid)
    assert len(children) == 2
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=100)
    assert demo.returncode == 130, out + err
    assert "interrupted; ended policy_node (exit code 0), sim_robot (exit code 0)" in out
    assert "no episode had ended" in out or "so far; episodes: 100" in out
    assert "Traceback" not in err + (tmp_path / "logs" / "policy_node_rtc.log").read_text()
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.slow
def test_a_policy_that_is_killed_ends_the_demo_with_a_sentence(graph, start_demo, tmp_path):
    demo = start_demo("--episodes", "100")
    graph.spin_until(lambda: is_running(tmp_path / "logs" / "policy_node_rtc.log"), what="a running policy")
    children = children_of(demo.pid)
    (policy,) = [child for child in children if "policy_node" in Path(f"/proc/{child}/cmdline").read_text()]
    os.kill(policy, signal.SIGKILL)
    out, err = demo.communicate(timeout=100)
    assert demo.returncode == 1, out + err
    assert "policy_node ended (killed by SIGKILL)" in err
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.parametrize(
    ("name", "topic", "said"),
    [
        ("policy", None, "holds /policy already"),
        ("broadcaster", "joint_states", "/broadcaster (publishes /joint_states)"),
    ],
)
def test_a_chosen_domain_with_others_in_it_is_refused(graph, start_demo, name, topic, said):
    from sensor_msgs.msg import JointState

    node = graph.node(name)
    if topic:
        node.create_publisher(JointState, topic, 1)
    demo = start_demo("--episodes", "1")
    out, err = demo.communicate(timeout=100)
    assert demo.returncode == 2, out + err
    assert said in err and "unset ROS_DOMAIN_ID" in err and "Traceback" not in err


def test_a_wrong_parameter_is_told_in_the_words_of_the_node(start_demo):
    demo = start_demo("--param", "rtc.schedule:=steep")
    out, err = demo.communicate(timeout=100)
    assert demo.returncode == 1, out + err
    assert "refused to configure" in err and "rtc.schedule" in err and "steep" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_no_robot_running(graph, start_demo):
    demo = start_demo("--episodes", "9")
    graph.spin_until(lambda: len(children_of(demo.pid)) == 2, what="both nodes")
    children = children_of(demo.pid)
    demo.kill()
    demo.communicate(timeout=10)
    gone = lambda: not any((Path("/proc") / str(child)).exists() for child in children)  # noqa: E731
    graph.spin_until(gone, what="the end of both nodes")
