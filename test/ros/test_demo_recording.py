"""Guards against: a recorded demo that does not hold what a replay needs, and a replay that decides otherwise than the
live node did on the same messages with the same latencies, or takes long."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phyai_ros.assembly import load_policy
from phyai_ros.cli.main import run
from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.params_file import read_params_file
from phyai_ros.replay.replay_run import Replay
from phyai_ros.replay.scenario import Scenario
from phyai_ros.replay.topics import NodeName

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "config" / "demo.yaml")
PAGE = (ROOT / "docs" / "how-to" / "validate-with-a-bag.md").read_text()
RECORD, REPLAY = re.findall(r"^    phyai-ros (.*demo.*)$", PAGE, flags=re.M)


@pytest.fixture(scope="module")
def recording(ros_environment, tmp_path_factory):
    """One episode of the demo as a bag, by the command of the page."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "phyai_ros.cli.main", *shlex.split(RECORD), "--plots", "plots"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "demo.mcap"


def test_the_recording_holds_inputs_commands_and_chunks(recording):
    with Bag(recording) as bag:
        counts = {topic.name: topic.count for topic in bag.topics.values()}
    assert counts["/camera/front/image_raw"] > 20 and counts["/joint_states"] > 80
    assert counts["/policy/chunk"] == counts["/policy/timing"] > 2 and counts["/policy/command"] > 20
    assert counts["/policy/ticks"] > 10


def test_the_page_shows_how_to_replay_it(recording, monkeypatch):
    monkeypatch.chdir(recording.parent)
    Path("config").symlink_to(ROOT / "config")
    assert run(shlex.split(REPLAY)) == 0


def test_a_replay_commands_what_the_live_node_commanded(recording, tmp_path):
    json_file = tmp_path / "r.json"
    arguments = ["replay", str(recording), "--params", CONFIG, "--json", str(json_file)]
    assert run([*arguments, "--require", "parity.exact==1"]) == 0
    parity = json.loads(json_file.read_text())["replay"]["parity"]
    assert parity["both"] == parity["equal"] > 20 and parity["largest"] == 0.0


def test_a_sound_demo_has_no_fault_of_its_own_resets(recording, tmp_path):
    """Between episodes the policy is switched off and the world stands still. A busy machine may add true faults."""
    json_file = tmp_path / "r.json"
    assert run(["replay", str(recording), "--params", CONFIG, "--json", str(json_file)]) == 0
    faults = {(f["topic"], f["kind"]) for f in json.loads(json_file.read_text())["findings"] if f["level"] != "note"}
    assert not faults & {("/policy/enable", "gap"), ("/camera/front/image_raw", "frozen")}
    assert "settings" not in {kind for _, kind in faults}


def test_a_recorded_latency_can_be_played_on_with_a_change(recording, tmp_path):
    json_file = tmp_path / "r.json"
    arguments = ["replay", str(recording), "--params", CONFIG, "--inject-delay", "0.25", "--json", str(json_file)]
    assert run(arguments) == 0
    report = json.loads(json_file.read_text())
    changed, before = (report[name]["timing"] for name in ("replay", "without_changes"))
    assert changed["l_inference"]["p50"] - before["l_inference"]["p50"] == pytest.approx(0.25, abs=0.05)
    assert changed["x"] < before["x"]


def test_latencies_of_a_recording_are_a_trace_for_another_bag(recording, tmp_path):
    json_file = tmp_path / "r.json"
    arguments = ["replay", str(recording), "--params", CONFIG, "--latency", "0.02", "--latency-trace", str(recording)]
    assert run([*arguments, "--json", str(json_file)]) == 0
    assert "trace demo.mcap" in json.loads(json_file.read_text())["replay"]["scenario"]


def test_a_replay_is_ten_times_faster_than_the_robot(recording):
    """Without loading the policy; the processor time of the best of five, since others use this machine too."""
    policy = load_policy(build_settings(read_params_file(Path(CONFIG))), log=lambda line: None)
    with Bag(recording) as bag:
        replay = Replay(bag, policy, NodeName())
        took_s = []
        for _ in range(5):
            started_s = time.process_time()
            replay.run(Scenario())
            took_s.append(time.process_time() - started_s)
        assert bag.duration_s > 10.0 * min(took_s)
