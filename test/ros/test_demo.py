"""The parts of the demo: child processes, recorder, view, lifecycle client, and what an interrupt shows.

Guards against figures of other ticks than those that were commanded, children that outlive the demo, tracebacks for a
child that dies, and a view that fails on what is not known yet.
"""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console


@pytest.fixture
def nodes(monkeypatch, ros_environment):
    """Children run a given program instead of an installed node."""
    from phyai_ros.cli import processes

    def use(text: str, folder: Path) -> type:
        (folder / "program.py").write_text(text)
        monkeypatch.setattr(processes, "find_executable", lambda name: folder / "program.py")
        return processes.Child

    return use


def wait_for(condition, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.02)


def test_a_child_that_dies_is_told_with_the_end_of_its_log(nodes, tmp_path):
    from phyai_ros.cli.errors import CommandFailed

    child = nodes("print('first words')\nprint('last words')\nraise SystemExit(3)", tmp_path)(
        "policy_node", [], os.environ, tmp_path / "log"
    )
    with pytest.raises(CommandFailed, match=r"policy_node ended \(exit code 3\)[^$]*last words"):
        wait_for(child.check)
    assert child.stop() == 3


def test_a_child_that_is_interrupted_before_it_handles_it_reads_well(nodes, tmp_path):
    from phyai_ros.cli.processes import describe_exit

    text = (
        "import time\nfrom phyai_ros.environment import prepare_node\nprepare_node()\nprint('importing', flush=True)\n"
    )
    child = nodes(text + "time.sleep(60)", tmp_path)("policy_node", [], os.environ, tmp_path / "log")
    wait_for(lambda: "importing" in child.tail())
    assert describe_exit(child.stop()) == "interrupted while it was loading"
    assert child.tail() == "importing"


def test_a_child_that_ignores_ctrl_c_is_ended_all_the_same(nodes, tmp_path, monkeypatch):
    from phyai_ros.cli import processes

    monkeypatch.setattr(processes, "INTERRUPT_WAIT_S", 0.2)
    text = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready')\ntime.sleep(60)"
    child = nodes(text, tmp_path)("policy_node", [], os.environ, tmp_path / "log")
    wait_for(lambda: "ready" in child.tail())
    child.check()
    assert child.stop() == -signal.SIGTERM


def test_an_older_child_leaves_nothing_in_the_log_of_the_next(nodes, tmp_path):
    text = "import sys, time\nprint('ready', flush=True)\ntry:\n  time.sleep(60)\nfinally:\n  print('old')"
    older = nodes(text, tmp_path)("policy_node", [], os.environ, tmp_path / "log")
    wait_for(lambda: "ready" in older.tail())
    newer = nodes("print('new')", tmp_path)("policy_node", [], os.environ, tmp_path / "log")
    wait_for(lambda: "new" in newer.tail())
    older.stop()
    assert newer.tail() == "new"


def make_messages(stamp_ns: int):
    from sensor_msgs.msg import JointState

    from phyai_ros.messages import to_time
    from phyai_ros.msg import ActionChunk, ControlTiming

    command, chunk, timing = JointState(name=["yaw", "elbow"], position=[0.1, 0.2]), ActionChunk(), ControlTiming()
    chunk.rows, chunk.columns, chunk.actions, chunk.dt, chunk.epoch = 2, 2, [0.1, 0.2, 0.3, 0.4], 0.04, 5
    timing.seam, timing.l_inference, timing.l_vision, timing.bound = 0.01, 0.25, float("nan"), "environment"
    for message in (command, chunk, timing):
        message.header.stamp = to_time(stamp_ns)
    return command, chunk, timing


def test_the_recorder_keeps_what_the_topics_said(graph):
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from sensor_msgs.msg import JointState
    from std_msgs.msg import String

    from phyai_ros.cli.recording import Recorder
    from phyai_ros.msg import ActionChunk, ControlTiming, PolicyStatus

    recorder = Recorder(graph.node("recorder"), "rtc")
    policy = graph.node("policy")
    topics = {"command": JointState, "chunk": ActionChunk, "timing": ControlTiming, "status": PolicyStatus}
    publishers = {name: policy.create_publisher(kind, f"~/{name}", 10) for name, kind in topics.items()}
    latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    episodes = graph.node("sim_robot").create_publisher(String, "~/episode", latched)
    for publisher in (*publishers.values(), episodes):
        graph.spin_until(lambda publisher=publisher: publisher.get_subscription_count() > 0)
    now_ns = time.time_ns()
    for name, message in zip(topics, make_messages(now_ns), strict=False):
        publishers[name].publish(message)
    status = PolicyStatus(state="running", rtc_mode="identity", starved_ticks=2, tick_error_p50=1e-4)
    publishers["status"].publish(status)
    publishers["status"].publish(PolicyStatus(state="inactive"))
    report = {"episode": 1, "outcome": "success", "start_ns": now_ns, "end_ns": None, "real_time_factor": 1.0}
    episodes.publish(String(data=json.dumps(report | {"outcome": "running"})))
    episodes.publish(String(data=json.dumps(report | {"end_ns": now_ns + 2_000_000_000})))
    graph.spin_until(lambda: recorder.wait_for_episode(0, 0.0))
    graph.spin_until(lambda: recorder.status and recorder.status.state == "inactive")
    graph.spin_until(lambda: recorder.timing and len(recorder.freeze().chunk_actions))
    graph.spin_until(lambda: len(recorder.freeze().command_rows))
    record = recorder.freeze()
    assert record.joint_names == ("yaw", "elbow") and record.dt_s == 0.04 and record.rtc_mode == "identity"
    np.testing.assert_allclose(record.command_rows, [[0.1, 0.2]])
    np.testing.assert_allclose(record.chunk_actions, [[[0.1, 0.2], [0.3, 0.4]]], atol=1e-6)
    assert record.status["starved_ticks"] == 2, "the farewell of the node carries no counters"
    assert record.timing["seam"] == [0.01] and np.isnan(record.timing["l_vision"][0])
    (episode,) = record.episodes
    assert (episode.outcome, round(episode.end_s - episode.start_s, 6)) == ("success", 2.0)
    assert record.command_times_s[0] == pytest.approx(episode.start_s)


def test_the_view_shows_what_is_known_and_says_what_is_not(graph):
    from sensor_msgs.msg import Image

    from phyai_ros.cli.demo_view import Scene, draw_picture, render
    from phyai_ros.cli.recording import Recorder
    from phyai_ros.msg import PolicyStatus

    console = Console(width=120, record=True, file=io.StringIO())
    recorder, scene = Recorder(graph.node("recorder"), "rtc"), Scene("demo", 3)
    console.print(render(scene, recorder))
    assert "starting" in console.export_text()
    recorder.status = PolicyStatus(state="holding", text="camera is 0.3 s old", tick_error_p99=0.002)
    recorder._timings.append(make_messages(0)[2])
    recorder.image = Image(height=2, width=2, step=8, encoding="rgb8", data=[255, 0, 0, 0, 255, 0, 9, 9] * 2)
    console.print(render(scene, recorder))
    shown = console.export_text()
    for words in ("holding", "camera is 0.3 s old", "1 of 3", "250.00 ms", "environment-bound", "2.00 ms", "▀▀"):
        assert words in shown, words
    picture = draw_picture(np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8))
    assert str(picture.spans[0].style) == "rgb(255,0,0) on rgb(0,0,255)"


def test_a_lifecycle_that_refuses_or_is_not_there_is_a_sentence(ros_environment):
    from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn

    from phyai_ros.cli.errors import CommandFailed
    from phyai_ros.cli.graph_client import GraphClient

    class Stubborn(LifecycleNode):
        def on_configure(self, state):
            return TransitionCallbackReturn.FAILURE

    watched = []
    with GraphClient("tester", lambda: watched.append(True)) as client:
        node = Stubborn("stubborn", context=client.node.context)
        client._executor.add_node(node)
        with pytest.raises(CommandFailed, match="stubborn refused to configure"):
            client.change_state("stubborn", "configure", 20.0)
        with pytest.raises(CommandFailed, match=r"nobody did not activate within 0\.2 s"):
            client.change_state("nobody", "activate", 0.2)
        node.destroy_node()
    assert watched


def test_an_interrupt_shows_whole_runs_and_this_one_so_far():
    from phyai_ros.cli.demo import show_interrupt
    from phyai_ros.cli.demo_run import DemoInterrupted
    from phyai_ros.cli.summary import summarise
    from ros.fake_runs import empty_record, make_record

    console = Console(width=120, record=True, file=io.StringIO())
    show_interrupt(console, DemoInterrupted(make_record("none"), []), [summarise(make_record())], "seed: 3")
    shown = console.export_text()
    assert "before a node was started" in shown and "so far; seed: 3" in shown
    assert shown.count("1 of 2") == 2
    show_interrupt(console, DemoInterrupted(empty_record(), []), [], "seed: 3")
    assert "no episode had ended" in console.export_text()
