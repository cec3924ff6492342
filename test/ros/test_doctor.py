"""The doctor on real files, machines and nodes; test_doctor_graph.py has its graphs.

Guards against: a misconfiguration that it does not name, a fix that is missing, a good machine called bad.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import rclpy
import yaml

from package.source_tree import ROOT
from phyai_ros.cli.main import run as run_cli
from phyai_ros.doctor.checks import Level, worst
from phyai_ros.doctor.examine import examine_files, examine_node
from phyai_ros.doctor.machine import Machine, check_machine
from phyai_ros.parameters import build_settings
from ros.policy_rig import PolicyRig

DEMO = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())["/**/policy"]["ros__parameters"]
ACT = ROOT / "test" / "golden" / "models" / "act"
WEIGHTS = next((ROOT / "phyai_ros" / "sim").rglob("flow_tiny.json"), None) or next(ROOT.glob("*/**/flow_tiny.json"))


def write(path: Path, parameters: dict, node: str = "/**") -> Path:
    path.write_text(yaml.safe_dump({node: {"ros__parameters": parameters}}))
    return path


def copy_checkpoint(folder: Path, weights: bytes | None = None, **changes: object) -> Path:
    """The shipped checkpoint with flow_tiny.json changed, or with other weights."""
    shutil.copytree(WEIGHTS.parent, folder, dirs_exist_ok=True)
    plain = json.loads((folder / "flow_tiny.json").read_text())
    (folder / "flow_tiny.json").write_text(json.dumps({**plain, **changes}))
    if weights is not None:
        (folder / "flow_tiny.safetensors").write_bytes(weights)
    return folder


# what is wrong: (changes of the demo's parameters, the check, what is said); {folder} holds checkpoints
PARAMETERS = {
    "no such name": ({"rtc.execution_horizn": 8}, "rtc.execution_horizn", "write rtc.exec"),
    "wrong type": ({"inference.seed": "seven"}, "inference.seed", "an integer"),
    "out of bounds": ({"inputs.max_age_s": -1.0}, "inputs.max_age_s", "-1.0 is not allowed"),
    "a number where text belongs": ({"inference.checkpoint": 483}, "inference.checkpoint", "in quotes"),
    "no such mode": ({"rtc.mode": "identiy"}, "rtc.mode", "write identity"),
    "unknown policy": ({"inference.adapter": "pi99"}, "inference.adapter", "smolvla"),
    "no GPU here": ({"inference.device": "cuda:7"}, "flow_tiny", "cuda:7"),
    "no checkpoint there": ({"inference.checkpoint": "{folder}/nothing"}, "flow_tiny", "is missing"),
    "cut-off weights": ({"inference.checkpoint": "{folder}/cut"}, "flow_tiny", "cannot be read"),
    "statistics of another robot": ({"inference.checkpoint": "{folder}/stats"}, "flow_tiny", "state_std"),
    "missing camera": ({"cameras": {"keys": ["wrist"], "wrist": {"topic": "x"}}}, "cameras.keys", "add 'front'"),
    "joints in another order": (
        {"joints.names": ["shoulder", "yaw", "elbow", "wrist_pitch"]},
        "joints.names",
        "yaw would do what the policy plans for shoulder",
    ),
    "too few joints": ({"joints.names": ["a", "b"]}, "joints.names", "4 names"),
    "horizon beyond the chunk": ({"rtc.execution_horizon": 32}, "rtc.execution_horizon", "1 to 31"),
    "inference too slow": ({"inference.inject_delay_s": 1.2}, "latency", "allowed is 0.960 s"),
    "little margin": ({"inference.inject_delay_s": 0.3}, "latency", "plans come late"),
    "no limits file": ({"limits.joint_limits_file": "/nowhere/joint_limits.yaml"}, "limits", "/nowhere"),
    "no position limits": ({}, "limits", "no joint has a position limit"),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_what_is_wrong_with_parameters_or_policy_is_named(case, tmp_path):
    changes, name, said = PARAMETERS[case]
    copy_checkpoint(tmp_path / "cut", weights=b"\x08")
    copy_checkpoint(tmp_path / "stats", state_std=[0.1] * 3)
    placed = {key: v.format(folder=tmp_path) if isinstance(v, str) else v for key, v in changes.items()}
    expect(write(tmp_path / "params.yaml", {**DEMO, **placed}), name, said)


@pytest.mark.parametrize(("placement", "said"), [("thread", "0.3 million"), ("process", "in a child process")])
def test_weights_are_told_once_wherever_inference_runs(placement, said, tmp_path):
    parameters = {"inference": {"adapter": "act", "checkpoint": str(ACT), "placement": placement}, "rtc.mode": "none"}
    cameras = {"keys": ["top", "wrist"], "top": {"topic": "top"}, "wrist": {"topic": "wrist"}}
    path = write(tmp_path / "params.yaml", {**parameters, "cameras": cameras, "rtc.execution_horizon": 5})
    _, policy, checks = examine_files(path, "/policy")
    assert policy is not None, checks
    policy.close()
    assert said in next(check.text for check in checks if check.name == "weights")


def test_a_file_that_is_none_or_for_another_node_is_named(tmp_path):
    broken = tmp_path / "params.yaml"
    broken.write_text("/**:\n  ros__parameters:\n   a: [1, 2\n")
    expect(broken, "params.yaml", "cannot be read as a parameter file")
    expect(write(tmp_path / "params.yaml", DEMO, "/other"), "params.yaml", "none for the node /policy")


def expect(path: Path, name: str, said: str) -> None:
    """The doctor finds `said` under `name`, and knows a fix for all that it finds."""
    _, policy, checks = examine_files(path, "/policy")
    if policy is not None:
        policy.close()
    found = [check for check in checks if check.level > Level.OK and check.name == name]
    assert found and said in f"{found[0].text} → {found[0].fix}", checks
    assert all(check.fix for check in checks if check.level > Level.OK)


def make_machine(folder: Path, governor: str = "performance", load: float = 0.1, **environment: str) -> Machine:
    cpu = folder / "sys/devices/system/cpu/cpu0/cpufreq"
    cpu.mkdir(parents=True)
    (cpu / "scaling_governor").write_text(f"{governor}\n")
    (folder / "loadavg").write_text(f"{load} 0.2 0.3 1/100 1234\n")
    return Machine(sys=folder / "sys", proc=folder, shm=folder, environment=environment)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"governor": "powersave"}, "governor powersave"),
        ({"load": 999.0}, "more work than cores"),
        ({"FASTDDS_DEFAULT_PROFILES_FILE": "/nowhere.xml"}, "/nowhere.xml of Fast DDS does not exist"),
        ({"FASTDDS_DEFAULT_PROFILES_FILE": str(ROOT / "package.xml")}, "no shared-memory segment"),
    ],
)
def test_what_is_wrong_with_a_machine_is_named(facts, said, tmp_path):
    found = [check for check in check_machine(None, make_machine(tmp_path, **facts)) if check.level > Level.OK]
    assert any(said in check.text and check.fix for check in found), found


def test_a_good_machine_and_our_own_profile_are_fine(tmp_path):
    profile = str(ROOT / "config" / "fastdds_shm.xml")
    checks = check_machine(None, make_machine(tmp_path, FASTDDS_DEFAULT_PROFILES_FILE=profile))
    assert all(check.level is Level.OK for check in checks if check.name != "shared memory"), checks


def test_a_core_that_does_not_exist_is_named(tmp_path):
    settings = build_settings({"realtime.affinity": [1023]})
    checks = check_machine(settings, make_machine(tmp_path))
    assert any("[1023] cannot be used" in check.text for check in checks)


def test_a_stopped_node_is_told_in_its_own_words(ros_environment):
    with PolicyRig() as rig:
        rig.start().wait_for_state("running")
        node = rclpy.create_node("phyai_doctor", context=rig.context)
        assert worst(examine_node(node, "/policy")) is Level.OK
        rig.robot.camera_on = False
        rig.wait_for_state("stopped")
        found = examine_node(node, "/policy")[0]
        node.destroy_node()
    assert found.level is Level.FAIL and "camera/front/image_raw" in found.text


def test_the_command_prints_writes_and_exits(tmp_path, capfd, ros_environment, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    good, bad = write(tmp_path / "good.yaml", DEMO), write(tmp_path / "bad.yaml", {**DEMO, "rtc.mode": "magic"})
    assert run_cli(["doctor", "--params", str(good), "--offline"]) == 0
    assert run_cli(["doctor", "--params", str(bad), "--offline", "--json", str(tmp_path / "d.json")]) == 1
    told = capfd.readouterr()
    assert "rtc.mode" in told.out and "1 FAIL" in told.out and "not ready" in told.err
    problem = next(line for line in told.out.splitlines() if line.startswith("FAIL"))
    assert "rtc.mode" in problem and "sync or instant" in problem, "a row is one line where nobody sets the width"
    report = json.loads((tmp_path / "d.json").read_text())
    assert not report["ok"] and {check["level"] for check in report["checks"]} >= {"FAIL", "OK"}
    assert run_cli(["doctor", "--seconds", "0.2"]) == 0
    assert run_cli(["doctor", "--params", str(tmp_path / "none.yaml"), "--offline"]) == 2
