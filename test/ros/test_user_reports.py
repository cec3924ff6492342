"""What users of comparable stacks reported, one test each, named after its number in docs/user_reports.md.

These run on a logical clock; those that need a live graph are in test_user_reports_live.py.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phyai_core.rtc import RtcConfig, tables_for
from phyai_core.types import Action, CameraSpec, Feature, Leftover, PolicySpec, Reason
from phyai_ros.images import decode_compressed, to_rgb
from phyai_ros.joint_units import JointUnits
from phyai_ros.log_guard import keep_logging
from phyai_ros.mailbox import Mailbox
from phyai_ros.parameters import ParameterError, build_settings
from phyai_ros.settings import Joints
from phyai_ros.spec_checks import check_against_spec
from ros.output_rig import CYCLE_NS, EPOCH_NS, JOINTS
from ros.pipeline_rig import DT_S, HORIZON, STEPS, PipelineRig, image_message, joint_message, slow_plan

MS = 1_000_000


def make_spec(*cameras: str, modes: tuple[str, ...] = ("none", "identity")) -> PolicySpec:
    joints = tuple(Feature(name) for name in JOINTS)
    specs = tuple(CameraSpec(key, 4, 4) for key in cameras)
    return PolicySpec("reports", HORIZON, DT_S, specs, joints, joints, 2, 5, rtc_modes=modes)


def test_r01_a_short_leftover_is_continued_by_its_last_row_not_by_zeros():
    leftover = Leftover(np.full((2, 2), 0.7, np.float32), np.full((2, 2), 0.7, np.float32), 1, 8)
    for mode in ("identity",):
        tables = tables_for(RtcConfig(mode), make_spec(modes=(mode,)), leftover)
        np.testing.assert_allclose(tables.prefix[2:10], 0.7)
        assert not tables.abc[:, 2:, 2].any()  # and these rows carry no weight
    empty = tables_for(RtcConfig("identity"), make_spec(), None)
    assert not empty.abc[:, :, 2].any()


def test_r02_every_mode_sends_the_joints_in_the_same_order():
    first = []
    for mode in ("none", "sync"):
        rig = PipelineRig(rtc__mode=mode, output__joints=["b", "a"])
        rig.run_until_moving()
        first.append(rig.sent[0])
    assert [list(message.joint_names) for message in first] == [["b", "a"]] * 2
    np.testing.assert_allclose(first[0].points[0].positions, first[1].points[0].positions)
    assert first[0].points[0].positions[1] > 0 > first[0].points[0].positions[0]  # a rises, b falls


@pytest.mark.parametrize("shift_s", [-5, 5])
def test_r03_a_robot_whose_clock_is_off_is_told_and_not_moved(shift_s):
    rig = PipelineRig()
    rig.wrongs.stamp_shift_ns = shift_s * 10**9
    command = rig.run(30)[-1]
    assert rig.sent == []
    assert command.reason in (Reason.INPUT_STALE, Reason.INPUT_CLOCK)
    assert "5.00" in command.text or "4.998" in command.text
    rig.wrongs.stamp_shift_ns = 0
    if shift_s < 0:
        rig.run_until_moving()
        assert rig.robot.rejections == [] and len(rig.sent[0].points) > 1


def test_r04_a_missing_joint_holds_and_is_named():
    rig = PipelineRig()
    rig.run_until_moving()
    rig.wrongs.joint_names = ("a",)
    command = rig.run_until(lambda command: command.action is not Action.RUN)
    assert command.reason is Reason.INPUT_MISSING and "b missing from joint_states" in command.text
    chunks = rig.executor.counters.chunks
    rig.run_until_rest()
    assert rig.executor.counters.chunks == chunks


def test_r05_a_gripper_counts_as_its_map_says_and_is_kept_in_range():
    units = JointUnits.from_settings(Joints(scale=(1.0, -0.8), offset=(0.0, 0.8)), make_spec())
    rows = np.array([[0.0, 1.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(units.to_robot(rows)[:, 1], [0.0, 0.8], atol=1e-6)
    np.testing.assert_allclose(units.to_policy(units.to_robot(rows)), rows, atol=1e-6)

    def beyond(request):
        return np.column_stack([np.zeros(HORIZON), np.minimum(0.02 * STEPS[:, 0], 0.56)])

    rig = PipelineRig(beyond, limits__position_upper=[9.0, 0.5], limits__max_clip_rad=0.1)
    rig.run(60)
    assert max(reference[1] for reference in rig.robot.references) <= 0.5 + 1e-6
    assert rig.motion.report.by_joint[1] > 0 and "b moved by 0.060" in rig.motion.report.text


def test_r06_cameras_are_matched_by_key_and_nothing_else_will_do():
    spec = make_spec("wrist", "front")
    topics = {f"cameras.{key}.topic": f"camera/{key}" for key in ("front", "wrist", "side")}

    def check(*keys):
        given = {name: value for name, value in topics.items() if name.split(".")[1] in keys}
        return check_against_spec(build_settings({"cameras.keys": list(keys), **given}), spec)

    mailbox = Mailbox(check("front", "wrist"), spec, lambda: EPOCH_NS)
    for key, shade in (("front", 10), ("wrist", 200)):
        picture = image_message("rgb8", 4, EPOCH_NS)
        picture.data = bytes([shade]) * 48
        mailbox.receive_image(key, picture)
    mailbox.receive_joints(joint_message(JOINTS, [0.0, 0.0], EPOCH_NS))
    images = mailbox.sample(EPOCH_NS, 0).obs.decode().images
    assert (images["front"] == 10).all() and (images["wrist"] == 200).all()
    for keys, word in ((("front",), "add 'wrist'"), (("front", "wrist", "side"), "remove 'side'")):
        with pytest.raises(ParameterError, match=word):
            check(*keys)
    with pytest.raises(ParameterError, match="each name once"):
        check("front", "front", "wrist")


def test_r07_the_same_picture_is_the_same_tensor_in_every_encoding():
    import cv2

    rgb = np.random.default_rng(1).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    alpha = np.full((6, 6, 1), 9, np.uint8)
    bgr = np.ascontiguousarray(rgb[:, :, ::-1])
    same = {"rgb8": rgb, "bgr8": bgr, "rgba8": np.dstack([rgb, alpha]), "bgra8": np.dstack([bgr, alpha])}
    for encoding, pixels in same.items():
        np.testing.assert_array_equal(to_rgb(encoding, 6, 6, pixels[0].size, pixels.tobytes()), rgb)
    np.testing.assert_array_equal(decode_compressed("png", cv2.imencode(".png", bgr)[1].tobytes()), rgb)
    with pytest.raises(ValueError, match="not supported"):
        to_rgb("8UC3", 6, 6, 18, rgb.tobytes())


@pytest.mark.parametrize(("offset_ms", "fits"), [(20, True), (80, False)])
def test_r08_sets_are_made_within_the_slop_and_a_wider_spread_is_told(offset_ms, fits):
    spec = make_spec("left", "right")
    values = {f"cameras.{key}.topic": key for key in ("left", "right")}
    given = build_settings({"cameras.keys": ["left", "right"], "inputs.slop_s": 0.04, **values})
    mailbox = Mailbox(check_against_spec(given, spec), spec, lambda: EPOCH_NS)
    now_ns = EPOCH_NS + 500 * MS
    for i in range(12):
        mailbox.receive_image("left", image_message("rgb8", 4, now_ns - (11 - i) * 33 * MS))
        if i % 2:
            mailbox.receive_image("right", image_message("rgb8", 4, now_ns - (11 - i) * 33 * MS - offset_ms * MS))
    mailbox.receive_joints(joint_message(JOINTS, [0.0, 0.0], now_ns - offset_ms * MS))
    sample = mailbox.sample(now_ns, 0)
    assert (sample.obs is not None) or not fits
    if sample.obs is not None:
        assert sample.spread_s <= 0.04
    silent = Mailbox(check_against_spec(given, spec), spec, lambda: EPOCH_NS)
    for key, stamp_ns in (("left", now_ns), ("right", now_ns - 80 * MS)):
        silent.receive_image(key, image_message("rgb8", 4, stamp_ns))
    silent.receive_joints(joint_message(JOINTS, [0.0, 0.0], now_ns))
    assert "stamped 0.080 s apart" in silent.sample(now_ns, 0).fault.text
    silent.receive_image("left", image_message("rgb8", 4, 0))
    assert mailbox.sample(now_ns, 0).fault is None or not fits


def test_r09_an_inference_of_half_a_second_still_starts_from_fresh_frames():
    ages_ns = []

    def note(request):
        ages_ns.append(rig.now_ns - request.obs.stamp_ns)
        return slow_plan(request)

    rig = PipelineRig(note, delay=13)
    rig.run(250)
    assert len(ages_ns) > 10 and max(ages_ns) < 50 * MS


def test_r11_lost_frames_can_be_counted_and_the_transport_profile_fits_large_images():
    from pathlib import Path
    from xml.etree import ElementTree

    rig = PipelineRig()
    rig.run(10)
    rig.wrongs.camera_on = False
    rig.run(3)
    assert rig.mailbox.received == {"front": 10, "joint_states": 13}
    profile = Path(__file__).parents[2] / "config" / "fastdds_shm.xml"
    sizes = [int(e.text) for e in ElementTree.parse(profile).iter() if e.tag.endswith("segment_size")]
    assert max(sizes) > 3 * 640 * 480 * 3


def test_r12_a_stall_is_one_late_tick_and_no_burst():
    rig = PipelineRig()
    rig.run_until_moving()
    rig.run(5)
    sent, ticks = len(rig.sent), rig.executor.counters.ticks
    rig.tick(missed=7)
    assert rig.executor.counters.ticks == ticks + 1 and rig.executor.counters.missed_ticks == 7
    assert len(rig.sent) <= sent + 1


def test_r13_while_the_clock_stands_nothing_expires():
    rig = PipelineRig()
    rig.run_until_moving()
    later = rig.mailbox.sample(rig.now_ns, rig.k)  # 5 s of wall time pass, none of ROS time
    assert later.fault is None and later.obs is not None
    assert rig.pipeline.supervision.fault(rig.now_ns) is None
    rig.run(20)
    assert all(command.action is Action.RUN for command in rig.commands[-20:])


def test_r14_stamps_of_another_clock_are_called_that():
    rig = PipelineRig()
    rig.wrongs.stamp_shift_ns = -EPOCH_NS + 10**9  # simulated time, while ours is wall time
    command = rig.run(20)[-1]
    assert command.reason is Reason.INPUT_CLOCK and "use_sim_time" in command.text and rig.sent == []


def test_r15_a_chunk_with_a_nan_is_refused_whole_and_the_old_one_brakes():
    def spoilt(request):
        rows = slow_plan(request)
        if request.seq == 3:
            rows[7, 1] = np.nan
        return rows

    rig = PipelineRig(spoilt)
    rig.run(120)
    numbers = np.array([point.positions for message in rig.sent for point in message.points])
    assert np.isfinite(numbers).all() and rig.executor.counters.chunks_rejected == 1
    assert rig.commands[-1].action is Action.RUN


def test_r18_a_lagging_arm_is_never_commanded_backwards_at_a_seam():
    rig = PipelineRig(delay=3)  # the arm lags by 60 ms, inference takes 120 ms
    rig.run_until_moving()
    rig.run(150)
    moves = np.diff([reference[0] for reference in rig.robot.references[60:]])
    assert rig.executor.counters.chunks > 10 and (moves >= -1e-9).all()


def test_r19_a_delay_that_no_chunk_covers_brakes_says_so_and_recovers():
    rig = PipelineRig(delay=3)
    rig.run_until_moving()
    rig.delay = 60
    command = rig.run_until(lambda command: command.action is Action.STOP, 200)
    assert command.reason is Reason.STARVED and "ran out" in command.text
    rig.run_until_rest()
    assert rig.robot.rejections == []
    rig.delay = 3
    rig.run_until(lambda command: command.action is Action.RUN)


def test_r20_a_policy_that_checks_its_arguments_runs_through_many_chunks():
    seen = []

    def strict(request):
        obs, leftover = request.obs.decode(), request.leftover
        assert obs.state.dtype == obs.last_command.dtype == np.float32 and obs.state.shape == (2,)
        assert obs.images["front"].shape == (4, 4, 3) and isinstance(obs.prompt, str)
        assert isinstance(request.delay_forecast, int) and request.delay_forecast >= 1
        if leftover is not None:
            assert leftover.latent.shape[1:] == (2,) and len(leftover.latent) == len(leftover.actions)
            assert isinstance(leftover.delay, int) and 1 <= leftover.execution_horizon <= HORIZON
        seen.append(leftover)
        return slow_plan(request)

    rig = PipelineRig(strict)
    rig.run(80)
    assert rig.executor.counters.policy_errors == 0
    assert seen[0] is None and len(seen) > 5 and all(leftover is not None for leftover in seen[1:])


def test_r21_jitter_of_the_wall_clock_changes_no_action():
    def run(jitter_ms: float) -> list[np.ndarray]:
        rng, rig = np.random.default_rng(0), PipelineRig()
        rig.pipeline._steady_now_ns = lambda: rig.now_ns + int(rng.uniform(0, jitter_ms) * MS)
        return [command.row for command in rig.run(80) if command.row is not None]

    np.testing.assert_array_equal(run(0.0), run(50.0))


def test_r22_tiny_motions_are_planned_as_often_as_large_ones():
    def tiny(request):
        return request.obs.last_command + 1e-5 * STEPS * [1.0, 1.0]

    counts = []
    for plan in (slow_plan, tiny):
        rig = PipelineRig(plan)
        rig.run(100)
        counts.append(rig.executor.counters.chunks)
    assert counts[0] == counts[1] >= 10


def test_r23_no_memory_stops_the_robot_with_the_reason_and_it_can_go_on_later():
    import torch

    from phyai_core.engine import resolve_device

    def hungry(request):
        if 3 <= request.seq < 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return slow_plan(request)

    rig = PipelineRig(hungry)
    command = rig.run_until(lambda command: command.reason is Reason.POLICY_ERROR)
    assert "OutOfMemoryError: CUDA out of memory" in command.text
    rig.run_until(lambda command: command.action is Action.RUN, 400)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="cuda"):
            resolve_device("cuda")


def test_r27_what_yaml_guesses_wrong_is_refused_with_the_way_out():
    with pytest.raises(ParameterError, match=r"inference.checkpoint: 1230.* put it in quotes"):
        build_settings({"inference.checkpoint": 123e5})
    with pytest.raises(ParameterError, match=r"rtc.execution_horizon: True"):
        build_settings({"rtc.execution_horizon": True})
    assert build_settings({"inference.checkpoint": "0483", "cameras.keys": [""]}).cameras.keys == ()


def test_r29_after_deactivation_nothing_is_sent():
    rig = PipelineRig()
    rig.run_until_moving()
    rig.run(10)
    rig.pipeline.close()
    rig.run_until_rest()
    rig.run(5)
    assert rig.pipeline.rested.is_set()
    sent = len(rig.sent)
    rig.run(125)  # five seconds
    assert len(rig.sent) == sent


def test_r30_a_library_cannot_take_over_the_logging():
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    with keep_logging():
        logging.basicConfig(force=True, level=logging.DEBUG)
        assert root.level == logging.DEBUG
    assert (root.level, root.handlers) == (level, handlers)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_r31_jitter_of_the_ticks_does_not_shake_the_robot(missed):
    rig = PipelineRig()
    rig.run_until_moving()
    for count in missed:
        rig.tick(missed=count)
    moves = np.diff([reference[0] for reference in rig.robot.references[40:]]) / (CYCLE_NS * 1e-9)
    assert moves.min() >= -1e-9 and moves.max() <= 0.2  # the plan: 0.1 rad/s


def test_r33_the_controller_gets_a_trajectory_per_chunk_and_no_more():
    rig = PipelineRig()
    rig.run(200)
    assert len(rig.sent) <= rig.executor.counters.chunks
    assert min(len(message.points) for message in rig.sent) > 8


def test_r34_a_checkpoint_of_another_format_is_refused_with_what_to_do(tmp_path):
    import torch

    from phyai_adapters import load_adapter

    (tmp_path / "config.json").write_text('{"type": "pi0", "n_action_steps": 50, "normalization_mapping": {}}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=str(tmp_path)) as refused:
        load_adapter("pi0", tmp_path, torch.device("cpu"))
    assert len(str(refused.value)) > 60
