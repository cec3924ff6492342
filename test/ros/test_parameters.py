"""Guards against: a wrong setting that is taken silently, or refused without saying what is allowed; types guessed by
YAML and launch files; misspelt names; settings that contradict the policy; generated files that are out of date.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from phyai_core.types import CameraSpec, Feature, PolicySpec
from phyai_ros.parameter_docs import REFERENCE_PATH, TEMPLATE_PATH, reference_markdown, yaml_template
from phyai_ros.parameter_table import parameter_table
from phyai_ros.parameters import ParameterError, build_settings, check_values
from phyai_ros.spec_checks import check_against_spec

ROOT = Path(__file__).parents[2]
FRONT = {"cameras.keys": ["front"], "cameras.front.topic": "camera/front/image_raw"}
JOINTS = ("yaw", "shoulder", "elbow")
SPEC = PolicySpec(
    name="three_joints",
    action_horizon=32,
    dt_s=0.04,
    cameras=(CameraSpec("front", 64, 64),),
    state=tuple(Feature(name) for name in JOINTS),
    action=tuple(Feature(name) for name in JOINTS),
    latent_dim=3,
    num_denoise_steps=5,
    rtc_modes=("none", "identity"),
)


def problem_of(values: dict, name: str) -> str:
    """The sentence about `name`, which has to be the only one."""
    with pytest.raises(ParameterError) as raised:
        build_settings(values)
    assert [problem.name for problem in raised.value.problems] == [name]
    return str(raised.value)


def mismatch_of(changes: dict, name: str, spec: PolicySpec = SPEC) -> str:
    with pytest.raises(ParameterError) as raised:
        check_against_spec(build_settings({**FRONT, **changes}), spec)
    assert [problem.name for problem in raised.value.problems] == [name]
    return str(raised.value)


def test_every_default_is_allowed_and_every_parameter_is_described():
    settings = build_settings({row.name: row.default_as_ros for row in parameter_table()})
    assert settings == build_settings({})
    assert all(row.description and row.allowed for row in parameter_table(["front"]))


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("start.max_step_rad", 1, 1.0),
        ("inputs.max_age_s", "0.5", 0.5),
        ("rtc.delay_window", 3.0, 3),
        ("rtc.mask_ext", "4", 4),
        ("rtc.mask_ext", "full", "full"),
        ("require_enable", "true", True),
        ("inference.checkpoint", "0483", "0483"),
        ("limits.max_velocity", 2, (2.0,)),
        ("limits.max_velocity", array("d", [1.0, 2.0]), (1.0, 2.0)),
        ("joints.names", [], ()),
        ("joints.names", [""], ()),
        ("joints.names", None, ()),
        ("joints.names", "yaw", ("yaw",)),
    ],
)
def test_types_guessed_by_yaml_and_launch_are_converted_where_nothing_is_lost(name, given, expected):
    group, _, leaf = name.rpartition(".")
    settings = build_settings({name: given})
    value = getattr(getattr(settings, group) if group else settings, leaf)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("inference.checkpoint", 12300000.0, "text"),
        ("prompt", 483, "text"),
        ("inference.device", "gpu", "cpu, cuda or cuda:N"),
        ("rtc.mode", "identty", "vjp, blend, ensemble, sync or instant"),
        ("rtc.delay_window", 1.5, "an integer, 1 to 1000"),
        ("rtc.delay_initial", True, "an integer, 0 to 1000 ticks"),
        ("inputs.max_age_s", -1.0, "above 0 up to 60 s"),
        ("inputs.slop_s", float("nan"), "above 0 up to 60 s"),
        ("limits.max_velocity", [1.0, -2.0], "above 0 up to 1000 rad/s or m/s"),
        ("limits.max_velocity", ["2.5", 1.0], "Fix: write it without quotes: [2.5, 1.0]"),
        ("inference.adapter", "smolvle", "pi05 or smolvla. Fix: write smolvla"),
        ("require_enable", "maybe", "true or false"),
        ("joints.names", ["yaw", "yaw"], "each name once"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name, value, allowed):
    sentence = problem_of({name: value}, name)
    assert sentence.startswith(f"{name}: {value!r} is not allowed")
    assert allowed in sentence and "Fix: " in sentence


def test_text_read_as_a_number_is_refused_with_the_way_out():
    assert "quotes" in problem_of({"prompt": 483}, "prompt")


def test_all_wrong_parameters_come_at_once():
    wrong = {
        "cameras.keys": ["front"],
        "inference.adapter": "flow_tinny",
        "inputs.slop_s": 0.0,
        "limits.max_velocity": "2.5",
        "rtc.exec_horizon": 3,
        "rtc.mode": "x",
    }
    with pytest.raises(ParameterError) as raised:
        build_settings(wrong)
    names = [problem.name for problem in raised.value.problems]
    assert names == ["cameras.front.topic", *list(wrong)[1:]]
    assert len(str(raised.value).splitlines()) == len(wrong)


def test_a_misspelt_name_is_reported_with_the_nearest_one():
    assert "rtc.execution_horizon" in problem_of({"rtc.executon_horizon": 8}, "rtc.executon_horizon")


def test_parameters_of_ros_itself_are_not_judged():
    build_settings({"use_sim_time": True, "qos_overrides./joint_states.subscription.reliability": "reliable"})


def test_each_camera_key_opens_a_group_and_a_forgotten_key_is_named():
    settings = build_settings({**FRONT, "cameras.front.transport": "compressed"})
    assert settings.cameras.by_key["front"].transport == "compressed"
    dotted = {"cameras.keys": ["observation.images.top"], "cameras.observation.images.top.topic": "top"}
    assert build_settings(dotted).cameras.by_key["observation.images.top"].topic == "top"
    assert "add 'wrist' to cameras.keys" in problem_of({**FRONT, "cameras.wrist.topic": "x"}, "cameras.wrist.topic")


def test_a_single_value_is_judged_by_itself():
    assert check_values({"cameras.front.qos": "reliable", "rtc.mode": "sync", "not_ours": 1}) == []
    assert [problem.name for problem in check_values({"cameras.front.qos": "exact"})] == ["cameras.front.qos"]


def test_what_is_left_to_the_policy_is_filled_in():
    settings = check_against_spec(build_settings({**FRONT, "joints.prefix": "left_"}), SPEC)
    assert settings.rtc.execution_horizon == 16
    assert settings.rtc.max_guidance_weight == settings.inference.num_denoise_steps == 5
    assert settings.limits.max_velocity == (1.0,) * 3
    assert settings.joints.names == JOINTS
    assert settings.output.joints == ("left_yaw", "left_shoulder", "left_elbow")


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("cameras.keys", {"cameras.keys": [], "cameras.front.topic": None}, "add 'front'"),
        (
            "cameras.keys",
            {"cameras.keys": ["front", "wrist"], "cameras.wrist.topic": "wrist"},
            "remove 'wrist'",
        ),
        ("rtc.execution_horizon", {"rtc.execution_horizon": 29, "rtc.delay_initial": 4}, "4 to 28 ticks"),
        ("rtc.execution_horizon", {"rtc.execution_horizon": 3, "rtc.delay_initial": 4}, "4 to 28 ticks"),
        ("rtc.delay_initial", {"rtc.delay_initial": 17}, "1 to 16 ticks"),
        ("rtc.mask_ext", {"rtc.mask_ext": 33}, "0 to 32 rows"),
        ("rtc.exclude", {"rtc.exclude": ["gripper"]}, "actions of three_joints: yaw, shoulder, elbow"),
        ("joints.names", {"joints.names": ["a", "b"]}, "yaw, shoulder, elbow"),
        ("output.joints", {"output.joints": ["yaw", "shoulder", "wrist"]}, "yaw, shoulder, elbow"),
        ("output.rate_hz", {"output.type": "forward_command", "output.rate_hz": 20.0}, "25 Hz"),
        ("output.rate_hz", {"output.rate_hz": 100.0}, "joint_trajectory"),
        ("limits.max_velocity", {"limits.max_velocity": [1.0, 2.0]}, "or 3"),
        (
            "limits.position_lower",
            {"limits.position_lower": [1.0], "limits.position_upper": [2.0, 0.5, 2.0]},
            "below limits.position_upper",
        ),
    ],
)
def test_settings_that_contradict_the_policy_are_named(name, changes, part):
    assert part in mismatch_of(changes, name)


def test_a_mode_or_an_action_kind_the_policy_lacks_is_named():
    assert "ensemble, sync, instant with" in mismatch_of({}, "rtc.mode", replace(SPEC, rtc_modes=("none",)))
    velocities = replace(SPEC, action=tuple(Feature(name, "velocity", "rad/s") for name in JOINTS))
    assert "velocity" in mismatch_of({}, "inference.adapter", velocities)
    steps = {"inference.num_denoise_steps": 4}
    assert "no denoise steps" in mismatch_of(steps, "inference.num_denoise_steps", replace(SPEC, num_denoise_steps=0))


@pytest.mark.parametrize(("path", "make"), [(REFERENCE_PATH, reference_markdown), (TEMPLATE_PATH, yaml_template)])
def test_generated_files_are_up_to_date(path, make):
    assert (ROOT / path).read_text() == make(), f"run: python -m phyai_ros.parameter_docs (writes {path})"


# --- on a node -------------------------------------------------------------------------------------------------------


def make_server(graph, params_file: Path, name: str = "policy"):
    from phyai_ros.parameter_server import ParameterServer

    node = graph.node(name, namespace="robot", cli_args=["--ros-args", "--params-file", str(params_file)])
    return node, ParameterServer(node)


def test_the_template_read_by_ros_gives_the_defaults(graph):
    _, server = make_server(graph, ROOT / TEMPLATE_PATH)
    assert server.read() == build_settings(FRONT)


def test_the_demo_file_fits_its_node_only(graph):
    _, server = make_server(graph, ROOT / "config/demo.yaml")
    assert server.read().rtc.execution_horizon == 8
    _, other = make_server(graph, ROOT / "config/demo.yaml", name="other")
    assert other.read() == build_settings({})


def test_a_parameter_file_with_mistakes_lets_the_node_start_and_is_told_when_read(graph, tmp_path):
    lines = [
        "rtc: {executon_horizon: 8, delay_window: 0}",
        "prompt: 0483",
        "joints.names: []",
        "limits.max_velocity: [1, 2]",
        "inputs.max_age_s: 500.0",
    ]
    path = tmp_path / "mistakes.yaml"
    path.write_text("/**:\n  ros__parameters:\n" + "".join(f"    {line}\n" for line in lines))
    node, server = make_server(graph, path)
    with pytest.raises(ParameterError) as raised:
        server.read()
    names = [problem.name for problem in raised.value.problems]
    assert names == ["inputs.max_age_s", "prompt", "rtc.delay_window", "rtc.executon_horizon"]
    assert node.get_parameter("inputs.max_age_s").value == 500.0


def test_values_set_at_run_time_are_judged_and_good_ones_count_at_the_next_read(graph):
    from rclpy.parameter import Parameter

    node, server = make_server(graph, ROOT / TEMPLATE_PATH)
    server.read()
    bad, good = node.set_parameters([Parameter("rtc.mode", value="identty"), Parameter("rtc.mode", value="sync")])
    assert not bad.successful and "Allowed: none, identity, fd" in bad.reason
    assert good.successful and server.read().rtc.mode == "sync"


def test_a_camera_added_at_run_time_gets_its_group_at_the_next_read(graph):
    from rclpy.parameter import Parameter

    node, server = make_server(graph, ROOT / TEMPLATE_PATH)
    node.set_parameters([Parameter("cameras.keys", value=["front", "wrist"])])
    with pytest.raises(ParameterError, match=r"cameras\.wrist\.topic"):
        server.read()
    node.set_parameters([Parameter("cameras.wrist.topic", value="wrist")])
    assert server.read().cameras.by_key["wrist"].topic == "wrist"


def test_descriptors_tell_meaning_and_range(graph):
    node, _ = make_server(graph, ROOT / TEMPLATE_PATH)
    descriptor = node.describe_parameter("inputs.max_age_s")
    assert descriptor.description and descriptor.floating_point_range[0].to_value == 60.0
    assert node.describe_parameter("rtc.delay_window").integer_range[0].from_value == 1
