"""Guards against: acting on inputs that are missing, old, frozen, apart in time or from another clock, and silence
about it.
"""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from phyai_core.types import CameraSpec, Feature, PolicySpec, Reason
from phyai_ros.input_sets import Received
from phyai_ros.joint_inbox import JointInbox
from phyai_ros.joints import JointMap
from phyai_ros.mailbox import Mailbox
from phyai_ros.parameters import build_settings
from phyai_ros.sample import Sample
from phyai_ros.settings import Joints
from phyai_ros.spec_checks import check_against_spec

START_NS = 1_700_000_000_000_000_000
JOINTS = ("yaw", "elbow", "grip")
CAMERAS = ("front", "wrist")


def make_spec(cameras=("front",)) -> PolicySpec:
    return PolicySpec(
        name="arm",
        action_horizon=8,
        dt_s=0.04,
        cameras=tuple(CameraSpec(key, 2, 2) for key in cameras),
        state=tuple(Feature(name) for name in JOINTS),
        action=tuple(Feature(name) for name in JOINTS),
        latent_dim=3,
        rtc_modes=("none", "identity"),
    )


class Rig:
    """A mailbox, and a robot whose time is told in milliseconds since the start."""

    def __init__(self, cameras=("front",), sim_time: bool = False, **changes) -> None:
        spec = make_spec(cameras)
        values = {"cameras.keys": list(cameras), **{f"cameras.{key}.topic": f"camera/{key}" for key in cameras}}
        values |= {name.replace("__", "."): value for name, value in changes.items()}
        settings = check_against_spec(build_settings(values), spec)
        self.now_ms = 0.0
        self.box = Mailbox(settings, spec, lambda: self._ns(self.now_ms), sim_time, lambda: 7)

    def image(self, at_ms: float, key: str = "front", **changes) -> None:
        fields = {"encoding": "rgb8", "height": 2, "width": 2, "step": 6, "is_bigendian": 0}
        fields |= {"data": array("B", bytes(range(12))), "header": self._header(at_ms), **changes}
        self.box.receive_image(key, SimpleNamespace(**fields))

    def joints(self, at_ms: float, names=JOINTS, positions=None) -> None:
        position = array("d", positions or [float(JOINTS.index(name)) for name in names])
        message = {"name": list(names), "position": position, "velocity": array("d"), "effort": array("d")}
        self.box.receive_joints(SimpleNamespace(header=self._header(at_ms), **message))

    def sample(self, now_ms: float, tick: int = 0, last_command=None) -> Sample:
        self.now_ms = now_ms
        return self.box.sample(self._ns(now_ms), tick, last_command)

    def fault(self, now_ms: float) -> tuple[Reason, str]:
        sample = self.sample(now_ms)
        assert sample.obs is None
        return sample.fault.reason, sample.fault.text

    def _header(self, at_ms: float | None) -> SimpleNamespace:
        stamp_ns = 0 if at_ms is None else self._ns(at_ms)
        return SimpleNamespace(stamp=SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9))

    @staticmethod
    def _ns(at_ms: float) -> int:
        return START_NS + round(at_ms * 1e6)


def test_a_complete_fresh_set_becomes_an_observation():
    rig = Rig(prompt="lift the cup")
    rig.sample(0, tick=41)
    rig.joints(30)
    rig.image(10)
    command = np.array([4.0, 5.0, 6.0], np.float32)
    sample = rig.sample(40, tick=42, last_command=command)
    assert sample.fault is None and sample.text == ""
    assert sample.ages == {"camera/front": pytest.approx(0.03), "joint_states": pytest.approx(0.01)}
    assert sample.spread_s == pytest.approx(0.02)
    assert [
        (source.name, source.stamp_ns, source.arrival_ns, source.arrival_tick) for source in sample.obs.sources
    ] == [
        ("camera/front", START_NS + 10_000_000, 7, 41),
        ("joint_states", START_NS + 30_000_000, 7, 41),
    ]
    observation = sample.obs.decode()
    assert observation.stamp_ns == START_NS + 10_000_000 and observation.prompt == "lift the cup"
    np.testing.assert_array_equal(observation.images["front"], np.arange(12).reshape(2, 2, 3))
    np.testing.assert_array_equal(observation.state, [0, 1, 2])
    np.testing.assert_array_equal(observation.last_command, command)
    np.testing.assert_array_equal(sample.obs.measured, [0, 1, 2])


def test_before_the_first_command_the_measured_pose_stands_for_it():
    rig = Rig()
    rig.image(0)
    rig.joints(0)
    np.testing.assert_array_equal(rig.sample(1).obs.last_command, [0, 1, 2])


def test_at_the_start_the_silent_topic_is_named():
    rig = Rig()
    assert rig.fault(0) == (Reason.INPUT_MISSING, "no message yet on camera/front")
    rig.image(0)
    assert rig.fault(1) == (Reason.INPUT_MISSING, "no message yet on joint_states")
    assert math.isnan(rig.sample(1).ages["joint_states"])


def test_joint_states_of_another_robot_are_told_apart_from_silence():
    rig = Rig()
    rig.image(0)
    rig.joints(0, ["j1", "j2"], [0.0, 0.0])
    assert rig.fault(1) == (Reason.INPUT_MISSING, "elbow, grip, yaw missing from joint_states, which names j1, j2")


def test_a_camera_that_stops_is_stale_by_its_stamp():
    rig = Rig()
    rig.image(0)
    rig.joints(100)
    assert rig.sample(100).obs is not None
    rig.joints(260)
    reason, text = rig.fault(260)
    assert reason is Reason.INPUT_STALE and "camera/front is 0.260 s old" in text


def test_messages_that_go_on_with_an_old_stamp_are_frozen():
    rig = Rig()
    for _ in range(4):
        rig.image(0)
    rig.joints(300)
    reason, text = rig.fault(300)
    assert reason is Reason.INPUT_FROZEN
    assert "camera/front is frozen: 4 messages came with the same stamp, 0.300 s old" in text


def test_nothing_expires_while_the_clock_stands():
    rig = Rig(sim_time=True)
    rig.image(0)
    rig.joints(0)
    assert all(rig.sample(50, tick).obs is not None for tick in range(1000))


@pytest.mark.parametrize("at_ms", [-4e6, 4e6])
def test_stamps_of_another_clock_are_called_that(at_ms):
    rig = Rig()
    rig.image(0)
    rig.joints(at_ms)
    reason, text = rig.fault(0)
    assert reason is Reason.INPUT_CLOCK and "joint_states" in text and "use_sim_time" in text


def test_stamps_ahead_are_refused_but_for_the_steps_of_a_simulated_clock():
    for sim_time in (False, True):
        rig = Rig(sim_time=sim_time)
        rig.joints(0)
        rig.image(20)
        sample = rig.sample(0)
        assert (sample.obs is not None) is sim_time
        assert sim_time or "0.020 s in the future" in sample.text


def test_messages_without_a_stamp_are_refused_or_dated_by_arrival():
    rig = Rig()
    rig.image(None)
    rig.joints(0)
    reason, text = rig.fault(0)
    assert reason is Reason.INPUT_CLOCK and "camera/front comes without a stamp" in text
    rig = Rig(inputs__zero_stamps="arrival")
    rig.now_ms = 30
    rig.image(None)
    rig.joints(40)
    assert rig.sample(50).ages["camera/front"] == pytest.approx(0.02)


@pytest.mark.parametrize(("offset_ms", "usable"), [(20, True), (80, False)])
def test_cameras_of_other_rates_are_matched_within_the_slop_or_not_at_all(offset_ms, usable):
    rig = Rig(CAMERAS, inputs__slop_s=0.04)
    for step in range(60):
        now_ms = step * 10.0
        rig.joints(now_ms)
        if step % 3 == 0:
            rig.image(now_ms, "front")
        if step % 7 == 0 and now_ms >= offset_ms:
            rig.image(now_ms - offset_ms, "wrist")
        sample = rig.sample(now_ms)
        if now_ms > 200 and usable:
            assert sample.obs is not None and sample.spread_s <= 0.04 + 1e-9
    if not usable:
        rig = Rig(CAMERAS, inputs__slop_s=0.04)
        rig.image(0, "wrist")
        rig.image(80, "front")
        rig.joints(80)
        reason, text = rig.fault(80)
        assert reason is Reason.INPUT_STALE
        assert "camera/wrist and camera/front are stamped 0.080 s apart (inputs.slop_s: 0.04)" in text


def test_the_newest_set_wins_and_a_late_camera_gets_the_joints_of_its_time():
    rig = Rig(inputs__slop_s=0.02)
    for at_ms in range(0, 101, 2):
        rig.joints(at_ms, positions=[float(at_ms)] * 3)
    rig.image(10)
    rig.image(50)
    sample = rig.sample(100)
    assert sample.obs.stamp_ns == START_NS + 50_000_000
    assert 50 <= sample.obs.measured[0] <= 70


@pytest.mark.parametrize("period_ms", [1, 2, 10, 30])
def test_the_history_of_joints_reaches_back_far_enough_at_any_rate(period_ms):
    rig = Rig(inputs__slop_s=0.05)
    for step in range(400 // period_ms):
        rig.joints(step * period_ms)
    now_ms = (400 // period_ms - 1) * period_ms
    rig.image(now_ms - 190)
    assert rig.sample(now_ms).obs is not None


def test_a_message_that_overtakes_another_does_not_bring_the_old_one_back():
    rig = Rig()
    rig.joints(20)
    rig.image(20)
    rig.image(10)
    assert rig.sample(30).ages["camera/front"] == pytest.approx(0.01)


def test_a_clock_that_went_back_starts_a_new_history():
    rig = Rig()
    rig.image(10_000)
    rig.joints(10_000)
    rig.image(0)
    rig.joints(0)
    assert rig.sample(10).obs is not None


def test_a_vanished_joint_is_named_while_its_topic_goes_on():
    rig = Rig()
    rig.joints(0)
    for at_ms in (100, 200, 300):
        rig.joints(at_ms, ["yaw", "grip"])
        rig.image(at_ms)
    reason, text = rig.fault(300)
    assert reason is Reason.INPUT_MISSING
    assert text == "elbow missing from joint_states, last seen 0.300 s ago"


def test_a_joint_that_lags_behind_the_others_is_named_before_it_is_stale():
    rig = Rig()
    rig.joints(0)
    rig.joints(120, ["yaw", "grip"])
    rig.image(120)
    reason, text = rig.fault(120)
    assert reason is Reason.INPUT_MISSING
    assert text == "elbow missing from joint_states, last seen 0.120 s before the newest message (inputs.slop_s: 0.1)"


def test_joints_of_several_publishers_make_one_state():
    rig = Rig()
    for at_ms in range(0, 100, 10):
        rig.joints(at_ms, ["elbow", "yaw"], [at_ms + 0.5, at_ms + 0.25])
        if at_ms % 50 == 0:
            rig.joints(at_ms, ["grip"], [at_ms])
    rig.image(90)
    sample = rig.sample(95)
    obs = sample.obs
    assert sample.ages["joint_states"] == pytest.approx(0.045)
    np.testing.assert_allclose(obs.measured, [90.25, 90.5, 50])
    assert obs.stamp_ns == START_NS + 50_000_000
    assert [source.name for source in obs.sources] == ["camera/front", "joint_states", "joint_states"]


def test_of_two_publishers_of_a_joint_the_newer_one_counts():
    rig = Rig()
    rig.image(0)
    rig.joints(0, positions=[1.0, 2.0, 3.0])
    rig.joints(10, ["yaw"], [9.0])
    np.testing.assert_allclose(rig.sample(10).obs.measured, [9, 2, 3])
    rig.joints(20, positions=[4.0, 5.0, 6.0])
    np.testing.assert_allclose(rig.sample(20).obs.measured, [4, 5, 6])


def test_a_value_that_is_no_number_is_named_and_never_used_later():
    rig = Rig()
    rig.image(0)
    rig.joints(0)
    rig.joints(10, positions=[0.0, math.nan, 0.0])
    assert rig.fault(10) == (Reason.INPUT_INVALID, "joint_states has the position nan for the joint elbow")
    rig.joints(20)
    assert np.isfinite(rig.sample(20).obs.state).all()


def test_a_broken_message_is_not_used_even_where_its_stamp_fits_best():
    rig = Rig(inputs__slop_s=0.02)
    rig.image(0)
    rig.joints(5, positions=[0.0, math.nan, 0.0])
    rig.joints(60)
    assert rig.sample(60).obs is None


def test_an_image_that_cannot_be_decoded_is_named_before_inference():
    rig = Rig()
    rig.joints(0)
    rig.image(0, encoding="yuv444")
    reason, text = rig.fault(0)
    assert reason is Reason.INPUT_INVALID and "camera/front" in text and "'yuv444' is not supported" in text


def test_a_broken_file_is_named_when_it_is_decoded():
    rig = Rig(cameras__front__transport="compressed")
    rig.joints(0)
    message = SimpleNamespace(header=rig._header(0), format="jpeg", data=array("B", b"\xff\xd8 cut"))
    rig.box.receive_image("front", message)
    with pytest.raises(ValueError, match=r"camera/front cannot be used: 6 bytes .* not a whole jpeg"):
        rig.sample(0).obs.decode()


def test_after_a_reset_only_newer_messages_count():
    rig = Rig()
    rig.image(0)
    rig.joints(0)
    rig.box.require_newer_than(START_NS + 5_000_000)
    rig.joints(10)
    reason, text = rig.fault(10)
    assert reason is Reason.WAITING_INPUT and "camera/front" in text
    rig.image(10)
    assert rig.sample(11).obs is not None


def test_after_a_jump_of_the_clock_everything_is_forgotten():
    rig = Rig()
    rig.image(0)
    rig.joints(0)
    rig.box.clear()
    assert rig.fault(0) == (Reason.INPUT_MISSING, "no message yet on camera/front")


def test_publishers_that_change_their_names_all_the_time_cost_bounded_memory():
    names = [f"joint_{index}" for index in range(8)]
    spec = PolicySpec("arm", 8, 0.04, (), (), tuple(Feature(name) for name in names), 8)
    inbox = JointInbox("joint_states", JointMap(spec, Joints()), reach_ns=0)
    for step in range(1, 1000):
        chosen = [name for index, name in enumerate(names) if step >> index & 1] + [f"other_{step}"]
        inbox.push(Received(None, step, 0, 0, layout=inbox.layout(chosen)))
    assert len(inbox._layouts) <= 256 and len(inbox._histories) <= 32
    assert inbox.feeds()[0][0].items[-1].stamp_ns == 999
