"""What the node tells of control time on a real graph. Guards against: messages that topic tools cannot time, metadata
that late listeners miss, events out of order, percentiles and clocks that never fill, hashes that do not tell apart."""

from __future__ import annotations

import json
import math
import re
import time

import pytest
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState

from package.source_tree import ROOT
from phyai_ros.metadata import hash_checkpoint, hash_settings
from phyai_ros.msg import ControlTiming, PolicyMetadata, PolicyStatus
from phyai_ros.parameters import build_settings
from ros.policy_rig import PolicyRig

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
EVENTS = ("exposed", "arrived", "launched", "ready", "published")


def seconds(stamp) -> float:
    return stamp.sec + stamp.nanosec * 1e-9


@pytest.fixture(scope="module")
def rig(ros_environment):
    """A node that has run for a few chunks."""
    with PolicyRig(**{"inference.inject_delay_s": 0.05}) as rig:
        rig.start().wait_for_state("running")
        rig.wait_for_news("timing", 5)
        yield rig


@pytest.mark.parametrize("topic", ["status", "chunk", "timing", "command", "diagnostics"])
def test_ros2_topic_delay_would_tell_something(rig, topic):
    rig.wait_for_news(topic)
    assert -0.05 < time.time() - seconds(rig.robot.heard[topic][-1].header.stamp) < 2.0


def test_metadata_reaches_who_comes_late(rig):
    heard: list[PolicyMetadata] = []
    rig.robot.create_subscription(PolicyMetadata, "policy/metadata", heard.append, LATCHED)
    rig.wait(lambda: heard, "metadata")
    told = heard[0]
    assert (told.policy, told.dt, told.action_horizon, told.execution_horizon) == ("fake", 0.04, 24, 6)
    assert list(told.joint_names) == list(told.action_names) == ["shoulder", "elbow"]
    assert list(told.state_kinds) == ["position", "position", "command", "command"]
    assert list(told.camera_topics) == ["/camera/front/image_raw"] and list(told.camera_heights) == [8]
    assert list(told.output_topics) == ["/joint_trajectory_controller/joint_trajectory"]
    assert len(told.config_hash) == 64 and told.checkpoint_hash == ""
    assert json.loads(told.parameters)["rtc"]["execution_horizon"] == 6


def test_the_events_of_a_chunk_follow_each_other_and_match_its_terms(rig):
    timing = rig.robot.heard["timing"][-1]
    at_s = [seconds(getattr(timing, name)) for name in EVENTS]
    assert at_s == sorted(at_s) and time.time() - at_s[0] < 30.0
    assert at_s[3] - at_s[2] == pytest.approx(timing.l_inference, abs=1e-4)
    assert at_s[4] - at_s[3] == pytest.approx(timing.l_adopt, abs=1e-4)
    assert 0.05 <= timing.l_other <= timing.l_inference and timing.l_other_how == timing.MEASURED
    assert math.isnan(timing.l_vision) and timing.l_vision_how == timing.UNKNOWN
    assert timing.l_critical_how == timing.BOUNDED  # this robot does not move its joints: no lag can be seen


def test_the_status_has_percentiles_and_clocks(rig):
    rig.wait(lambda: not math.isnan(rig.robot.status.y_p99), "percentiles")
    status = rig.robot.status
    assert status.l_env == pytest.approx(0.24) and status.x_p50 == pytest.approx(0.24 / status.l_inference_p50)
    assert status.bound == ("environment" if status.x_p50 >= 1.0 else "inference")
    assert status.l_inference_p50 <= status.l_inference_p99 and status.x_p99 <= status.x_p50
    assert status.margin_p50 == pytest.approx(status.x_p50 - 1.0)
    assert len(status.input_clock_offsets) == len(status.input_names) == 2
    assert all(0.0 <= offset_s < 0.1 for offset_s in status.input_clock_offsets)
    assert list(status.input_stamps_back) == [0, 0]
    assert math.isnan(status.actuation_lag)


def test_diagnostics_carry_the_regime(rig):
    """What the status says, however fast this machine is."""
    rig.wait(lambda: any(x != "nan" for *_, x in shown_regimes(rig)), "diagnostics of what was measured")
    bound, _, x = shown = shown_regimes(rig)[-1]
    rig.wait(lambda: shown in told_regimes(rig), f"a status that says {shown}")
    assert bound == ("environment" if float(x) >= 1.0 else "inference")


def shown_regimes(rig) -> list[tuple[str, str, str]]:
    entries = [{pair.key: pair.value for pair in msg.status[0].values} for msg in rig.robot.heard["diagnostics"]]
    return [(values["bound"], values["feasible"], values["x_p50"]) for values in entries]


def told_regimes(rig) -> list[tuple[str, str, str]]:
    return [(status.bound, str(status.feasible), f"{status.x_p50:.4g}") for status in rig.robot.heard["status"]]


def test_hashes_tell_settings_and_checkpoints_apart(tmp_path):
    first, second = ({"rtc.execution_horizon": s} for s in (6, 7))
    assert hash_settings(build_settings(first)) == hash_settings(build_settings(first))
    assert hash_settings(build_settings(first)) != hash_settings(build_settings(second))
    (tmp_path / "weights").write_bytes(b"abc")
    before = hash_checkpoint(str(tmp_path))
    (tmp_path / "weights").write_bytes(b"abd")
    assert len(before) == 64 and hash_checkpoint(str(tmp_path)) != before


def test_the_foxglove_layout_names_fields_that_exist():
    layout = json.loads((ROOT / "config" / "foxglove_layout.json").read_text())
    kinds = {"timing": ControlTiming, "status": PolicyStatus, "command": JointState}
    paths = [path["value"] for panel in layout["configById"].values() for path in panel.get("paths", ())]
    assert len(paths) > 20
    for path in paths:
        topic, field = re.fullmatch(r"/policy/(\w+)\.(\w+)(?:\[\d+\])?", path).groups()
        assert field in kinds[topic].get_fields_and_field_types(), path
