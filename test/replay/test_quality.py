"""Guards against: faults in recorded data that are missed, told at the wrong time, or invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from phyai_ros.replay.bag import Bag
from phyai_ros.replay.findings import MOST_ALIKE, Findings
from phyai_ros.replay.quality import QualityCheck
from phyai_ros.replay.replay_run import check_data
from replay.live_rig import LiveRun
from replay.made_bags import CAMERA, JOINTS, MadeBag
from replay.replay_rig import knowing_policy

SWITCHED = [(0.5, True), (1.6, False), (2.1, True)]
DATA = Path(__file__).parents[1] / "data" / "bags"


def report_of(tmp_path, made: MadeBag, **options):
    with Bag(made.write(tmp_path / "bag")) as bag:
        check = QualityCheck(bag, **options)
        for message in bag.messages():
            check.take(message)
        return check.report()


def only(report, kind: str):
    found = [finding for finding in report.findings if finding.kind == kind]
    assert len(found) == 1, report.findings
    return found[0]


def test_a_clean_bag_has_no_findings_and_its_true_rates(tmp_path):
    report = report_of(tmp_path, MadeBag())
    assert report.findings == ()
    rates = {topic.topic.name: topic.times.rate_hz for topic in report.topics}
    assert rates == {CAMERA: pytest.approx(25.0), JOINTS: pytest.approx(100.0)}


def test_a_gap_is_told_with_its_length_at_its_time(tmp_path):
    found = only(report_of(tmp_path, MadeBag(camera_gap=(1.0, 1.5))), "gap")
    assert found.topic == CAMERA and found.time_s == pytest.approx(1.0)
    assert found.text == "no message for 0.520 s"


def test_a_gap_of_an_uneven_camera_is_told_too(tmp_path):
    """Every third picture is lost, and then half a second of them."""
    made = MadeBag(camera_gap=(1.0, 1.5), lost_every=3)
    found = only(report_of(tmp_path, made), "gap")
    assert found.topic == CAMERA and found.time_s == pytest.approx(1.0, abs=0.05)


def test_a_frozen_camera_is_told(tmp_path):
    found = only(report_of(tmp_path, MadeBag(frozen=(2.0, 2.5))), "frozen")
    assert found.time_s == pytest.approx(2.0) and "13 times in a row" in found.text


def test_equal_pictures_of_a_robot_that_stands_still_are_no_fault(tmp_path):
    found = only(report_of(tmp_path, MadeBag(frozen=(2.0, 2.5), still=(1.9, 2.6))), "still")
    assert found.level == "note" and found.time_s == pytest.approx(2.0) and found.text.endswith("while no joint moved")


def test_a_camera_that_stays_frozen_when_the_robot_moves_on_is_one(tmp_path):
    found = only(report_of(tmp_path, MadeBag(frozen=(2.0, 2.8), still=(1.9, 2.6))), "frozen")
    assert found.level == "warning" and found.time_s == pytest.approx(2.0)


def switches(times) -> list:
    return [(t, "/policy/enable", "std_msgs/msg/Bool", {"data": True}) for t in times]


def test_a_topic_that_speaks_when_something_happens_has_no_gaps(tmp_path):
    now_and_then = [0.1, 0.11, 0.12, 0.4, 0.41, 0.8, 0.81, 2.9, 3.2, 3.21, 3.9, 3.95]
    assert report_of(tmp_path, MadeBag(more=switches(now_and_then))).findings == ()


def test_a_deadman_that_is_repeated_has(tmp_path):
    steady = [0.1 * number for number in range(40) if not 20 < number < 30]
    found = only(report_of(tmp_path, MadeBag(more=switches(steady))), "gap")
    assert found.level == "warning" and found.text == "no message for 1.000 s"


def gaps_of_commands(path) -> list[tuple[str, str]]:
    with Bag(path) as bag:
        return [(f.level, f.kind) for f in check_data(bag).findings if f.topic == "/policy/command"]


def test_commands_may_be_silent_while_the_policy_is_off(tmp_path):
    off_and_on = [(seconds, "/policy/enable", "std_msgs/msg/Bool", {"data": on}) for seconds, on in SWITCHED]
    with knowing_policy():
        run = LiveRun(MadeBag(more=off_and_on), parameters={"require_enable": True})
        assert gaps_of_commands(run.record(tmp_path)) == [("note", "pause")]


def test_commands_that_cease_by_themselves_are_a_fault(tmp_path):
    """Before and after the gap the policy is switched off too."""
    off_and_on = [(seconds, "/policy/enable", "std_msgs/msg/Bool", {"data": on}) for seconds, on in SWITCHED]
    with knowing_policy():
        made = MadeBag(more=off_and_on, camera_gap=(2.6, 3.4))
        path = LiveRun(made, parameters={"require_enable": True}).record(tmp_path)
    assert gaps_of_commands(path) == [("note", "pause"), ("warning", "gap")]


def test_pictures_that_change_their_size_are_told(tmp_path):
    found = only(report_of(tmp_path, MadeBag(bigger_after=3.0)), "format")
    assert found.time_s == pytest.approx(3.0) and "rgb8 8x8 to rgb8 16x16" in found.text


def test_a_stamp_that_goes_back_is_told(tmp_path):
    found = only(report_of(tmp_path, MadeBag(late_stamp_at=1.23)), "stamp_back")
    assert found.topic == JOINTS and found.time_s == pytest.approx(1.23) and "0.490 s" in found.text


def test_inputs_too_far_apart_are_told_once(tmp_path):
    found = only(report_of(tmp_path, MadeBag(stamp_delay_s=0.15), slop_s=0.1), "spread")
    assert found.topic == CAMERA and "0.150 s" in found.text


def test_a_joint_that_the_policy_needs_and_nobody_names(tmp_path):
    report = report_of(tmp_path, MadeBag(missing_joint=True), joints={JOINTS: ("shoulder", "elbow")})
    found = only(report, "missing_joints")
    assert found.level == "error" and found.text == "never names elbow; it names shoulder"


def test_stamps_of_another_clock_are_told_with_the_way_out(tmp_path):
    report = report_of(tmp_path, MadeBag(stamp_shift_s=-1e8))
    assert {finding.kind for finding in report.findings} == {"clock"}
    assert "--clock header" in report.findings[0].text


def test_many_of_a_kind_are_summed_up():
    findings = Findings()
    for number in range(20):
        findings.add(float(number), "warning", "/x", "gap", "a gap")
    listed = findings.list()
    assert len(listed) == MOST_ALIKE and listed[-1].text == "a gap; 15 more of this kind follow"
    assert findings.count("gap") == 20


def test_real_jitter_and_the_gap_of_a_motion_capture_system():
    """A quadrotor under motion capture: 100 Hz with real jitter, and twice nothing for a while near the end."""
    with Bag(DATA / "crazyflie_roll45.mcap") as bag:
        report = check_data(bag)
    (pose,) = [topic for topic in report.topics if topic.topic.name.endswith("/pose")]
    assert pose.times.rate_hz == pytest.approx(100.0, abs=0.5)
    assert pose.times.period_p99_s == pytest.approx(0.0113, abs=0.0015)
    assert pose.times.period_max_s == pytest.approx(0.3001, abs=1e-4)
    gaps = [finding for finding in report.findings if finding.kind == "gap" and finding.topic.endswith("/pose")]
    assert [finding.text for finding in gaps] == ["no message for 0.160 s", "no message for 0.300 s"]
    assert [finding.time_s for finding in gaps] == pytest.approx([53.100, 53.400], abs=1e-3)
