"""Guards against: a command that needs ROS, exits with the wrong code, shows a traceback, or writes other bytes each
time; an output bag that nothing else can read; a live run that a replay does not reproduce."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phyai_ros.cli.main import run
from phyai_ros.replay.bag import Bag
from replay.made_bags import MadeBag
from replay.replay_rig import knowing_policy, write_params

DATA = Path(__file__).parents[1] / "data" / "bags"
CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def made(tmp_path):
    """A made bag and a parameter file, with the adapter `knowing`."""
    with knowing_policy():
        yield str(MadeBag().write(tmp_path / "bag")), str(write_params(tmp_path / "params.yaml"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_runs_write_the_same_bytes_but_for_wall_times(made, tmp_path):
    bag, params = made
    for name in ("a", "b"):
        assert run(["replay", bag, "--params", params, "--out", str(tmp_path / name)]) == 0
    one, two = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert set(one) == {"actions.csv", "report.html", "report.json", "timings.jsonl"}
    assert {name for name in one if one[name] != two[name]} <= {"timings.jsonl"}


def test_the_report_stands_alone_and_begins_with_the_verdict(made, tmp_path):
    bag, params = made
    assert run(["replay", bag, "--params", params, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("Nothing speaks against it") < page.index("<h2>")
    assert "camera front: as it is" in page
    assert page.count("data:image/png;base64,") >= 4 and "http" not in page and "<script" not in page


def test_without_a_policy_the_data_are_judged(tmp_path, capsys):
    assert run(["replay", str(DATA / "crazyflie_roll45.mcap"), "--json", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["replay"] is None
    assert ["no message for 0.300 s", 53.4] in [[f["text"], round(f["time_s"], 1)] for f in report["findings"]]
    out = capsys.readouterr().out
    assert "no message for 0.300 s" in out and f"wrote {tmp_path / 'r.json'}" in out


def test_requirements_decide_the_exit_code(made, capsys):
    bag, params = made
    arguments = ["replay", bag, "--params", params]
    met = ("stops<=0", "open_loop.ratio<1", "findings.error==0")
    assert run([*arguments, *(part for text in met for part in ("--require", text))]) == 0
    assert run([*arguments, "--require", "chunks>1000"]) == 1
    assert "chunks is" in capsys.readouterr().err
    assert run([*arguments, "--require", "nonsense"]) == 2


def test_a_what_if_stands_beside_the_run_as_it_is(made, tmp_path):
    bag, params = made
    json_file = tmp_path / "r.json"
    assert run(["replay", bag, "--params", params, "--inject-delay", "0.5", "--json", str(json_file)]) == 0
    report = json.loads(json_file.read_text())
    before, after = report["without_changes"], report["replay"]
    assert before["timing"]["x"] == pytest.approx(12.0) and after["timing"]["x"] == pytest.approx(0.24 / 0.52)
    assert before["timing"]["y"] > after["timing"]["y"] and before["chunks"] > after["chunks"]
    (told,) = [sentence for sentence in report["verdict"]["sentences"] if sentence.startswith("From latency 0.02 s to")]
    assert "X 12 to 0.462" in told and f"holds 0 to {after['holds']}" in told


def test_another_mode_is_a_what_if_too(made, tmp_path):
    bag, params = made
    json_file = tmp_path / "r.json"
    assert run(["replay", bag, "--params", params, "--mode", "sync", "--latency", "0.2", "--json", str(json_file)]) == 0
    report = json.loads(json_file.read_text())
    assert report["replay"]["hold_ticks"] > report["without_changes"]["hold_ticks"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--inject-delay", "0.2"], "--inject-delay: only with a policy; give its parameter file with --params"),
        (["--latency", "0.05", "--drop-camera", "front:0.5"], "--drop-camera, --latency: only with a policy"),
        (["--require", "parity.exact==1"], "Figures of a policy need --params"),
        (["--params", "{params}", "--latency", "soon"], "--latency is 'soon'; allowed is seconds"),
        (["--params", "{params}", "--drop-camera", "rear:0.5"], "--drop-camera names rear; allowed: front"),
        (["--params", "{params}", "--drop-camera", "front:2"], "allowed is a share from 0 to 1"),
        (["--params", "{params}", "--compare", "/camera/front/image_raw"], "has the type sensor_msgs/msg/Image"),
        (["--params", "{params}", "--latency", "recorded"], "holds no run of a policy node"),
        (["--params", "{params}", "--remap", "/joint_states:=/other"], "it has no topic /joint_states"),
        (["--params", "{params}", "--mode", "warp"], "rtc.mode"),
    ],
)
def test_mistakes_are_sentences(made, capsys, arguments, said):
    bag, params = made
    assert run(["replay", bag, *(argument.replace("{params}", params) for argument in arguments)]) == 2
    assert said in capsys.readouterr().err


def test_a_bag_without_the_needed_topics_lists_what_it_has(tmp_path, capsys):
    params = str(CONFIG / "demo.yaml")
    assert run(["replay", str(DATA / "crazyflie_roll45.mcap"), "--params", params]) == 2
    said = capsys.readouterr().err
    assert "it has no topic /joint_states (sensor_msgs/msg/JointState)" in said and "/cf_logpos" in said


def test_the_output_bag_holds_what_would_have_been_published(made, tmp_path, capsys):
    bag, params = made
    out = tmp_path / "out.mcap"
    assert run(["replay", bag, "--params", params, "--write", str(out), "--out", str(tmp_path / "o")]) == 0
    assert f"wrote {out}\n" in capsys.readouterr().out
    with Bag(out) as written:
        types = {topic.name: (topic.type, topic.count) for topic in written.topics.values()}
        chunks = [m.msg for m in written.messages(["/replay/policy/chunk"])]
    rows = sum(",run," in line for line in (tmp_path / "o" / "actions.csv").read_text().splitlines())
    assert types["/replay/policy/command"] == ("sensor_msgs/msg/JointState", rows)
    assert types["/replay/policy/chunk"][0] == "phyai_ros/msg/ActionChunk"
    assert types["/replay/policy/timing"][0] == "phyai_ros/msg/ControlTiming"
    trajectory = "/replay/joint_trajectory_controller/joint_trajectory"
    assert types[trajectory] == ("trajectory_msgs/msg/JointTrajectory", len(chunks) + 1)  # and the braking one
    assert chunks[0].rows == 24 and list(chunks[0].names) == ["shoulder", "elbow"]
    assert run(["replay", str(out)]) == 0


WITHOUT_ROS = """
import importlib.abc, sys

class NoRos(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        return None

NAMES = {"rclpy", "rpyutils", "ament_index_python", "lifecycle_msgs", "rcl_interfaces", "cv_bridge"}
MESSAGES = {"builtin_interfaces", "sensor_msgs", "std_msgs", "trajectory_msgs", "diagnostic_msgs", "geometry_msgs"}
sys.meta_path.insert(0, NoRos())
site = [p for p in sys.path if "site-packages" in p]
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def hide(name, path=None, target=None):
    return None if name.split(".")[0] in MESSAGES or name.startswith("phyai_ros.msg") else found(name, path, target)
PathFinder.find_spec = staticmethod(hide)
from phyai_ros.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_no_ros_is_needed(tmp_path):
    """rclpy and every message package are hidden from the interpreter."""
    out = tmp_path / "out.mcap"
    arguments = ["replay", str(DATA / "bridge_widowx.mcap"), "--params", str(CONFIG / "bridge_widowx.yaml")]
    command = [sys.executable, "-c", WITHOUT_ROS, *arguments, "--write", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    with Bag(out) as written:
        assert written.topics["/replay/policy/chunk"].count > 20
