"""The doctor on real graphs: real publishers, subscribers and parameters, one thing wrong in each.

Guards against: a misconfiguration that it does not name, a fix that is missing, a healthy robot called ill.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import rclpy
import torch
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float64MultiArray, String

from phyai_core.engine import Engine
from phyai_core.types import Observation
from phyai_ros.assembly import LoadedPolicy
from phyai_ros.doctor.checks import Check, Level, worst
from phyai_ros.doctor.examine import examine_graph
from phyai_ros.doctor.inputs import suggest_topics
from phyai_ros.parameters import build_settings
from phyai_ros.settings import Settings
from phyai_ros.spec_checks import check_against_spec
from ros.fake_policy import FakePolicy
from ros.flawed_robot import CONTROLLER, HOUR_S, Case, Controller, FlawedRobot, Manager, Workbench, age
from ros.policy_rig import PARAMETERS
from ros.standins import provide

CAMERA, JOINT_TOPIC = "/camera/front/image_raw", "/joint_states"
TRAJECTORY = f"/{CONTROLLER}/joint_trajectory"
VERIFY = {"controller__ownership": "verify"}
AT_ONCE = 5  # they mostly wait
RAISED_LIMITS = {"limits__position_lower": [0.5, -1.0], "limits__position_upper": [1.0, 1.0]}


def settings_of(**changes: object) -> Settings:
    changes = {"inference.adapter": "flow_tiny", **changes}  # a name that exists; the spec below is what counts
    values = {**PARAMETERS, **{name.replace("__", "."): value for name, value in changes.items()}}
    return check_against_spec(build_settings(values), FakePolicy().spec)


class Choosy(FakePolicy):
    """A policy that does not resize: it takes a blank observation, and no camera of this robot."""

    def preprocess(self, obs: Observation):
        if obs.stamp_ns:
            raise ValueError("camera front: 8 x 8 pixels given, the policy was trained on 60 x 80; resize it")
        return super().preprocess(obs)


def examine(
    doctor: rclpy.Context, namespace: str, sim_time: bool = False, policy: type = FakePolicy, **changes: object
) -> list[Check]:
    """What the doctor, in a ROS context of its own as in a process of its own, finds in `namespace`."""
    simulated = [Parameter("use_sim_time", value=sim_time)]
    node = Node("phyai_doctor", context=doctor, namespace=namespace, parameter_overrides=simulated)
    loaded = LoadedPolicy(Engine(policy(), torch.device("cpu")), settings_of(**changes))
    try:
        return examine_graph(node, loaded, f"{namespace}/policy", seconds=0.6, discovery_s=3.0)
    finally:
        node.destroy_node()


def robot(**flaws: object):
    return lambda case, namespace: FlawedRobot(case, namespace, **flaws)


def with_controller(**parameters: object):
    def make(case: Case, namespace: str) -> None:
        FlawedRobot(case, namespace)
        Controller(case, namespace, **parameters)

    return make


def frozen(case: Case, namespace: str) -> None:
    robot = FlawedRobot(case, namespace)
    robot._flaws["camera_stamp"] = robot.frozen


def with_manager(**states: str):
    def make(case: Case, namespace: str) -> None:
        FlawedRobot(case, namespace)
        Manager(case, namespace, states)

    return make


def twins(case: Case, namespace: str) -> None:
    FlawedRobot(case, namespace)
    for _ in range(2):
        case.serve(Node("policy", context=case.context, namespace=namespace))


# what is wrong: (robot, settings, where, what is said)
GRAPHS = {
    "no camera": (robot(images=0), {}, CAMERA, "nobody publishes it"),
    "camera under another name": (
        robot(),
        {"cameras__front__topic": "camera/wrist/image_raw"},
        "/camera/wrist/image_raw",
        "front/image_raw",
    ),
    "compressed instead of raw": (robot(camera_kind=CompressedImage), {}, CAMERA, "is a sensor_msgs/msg/Compressed"),
    "reliable asked, best effort sent": (
        robot(camera_qos="BEST_EFFORT"),
        {"cameras__front__qos": "reliable"},
        CAMERA,
        "do not arrive",
    ),
    "encoding nobody converts": (robot(encoding="hologram"), {}, CAMERA, "hologram"),
    "row shorter than its pixels": (robot(encoding="rgba8"), {}, CAMERA, "step"),
    "slow camera": (robot(camera_hz=6.0), {}, CAMERA, "the policy runs at 25 Hz"),
    "another shape": (robot(size=(8, 32)), {}, CAMERA, "32 x 8"),
    "pictures the policy does not take": (robot(), {"policy": Choosy}, "inputs", "trained on 60 x 80 → resize it"),
    "image larger than default settings carry": (robot(size=(480, 640)), {}, CAMERA, "more than default settings"),
    "unstamped pictures": (robot(camera_stamp=lambda now_ns, count: 0), {}, CAMERA, "without a stamp"),
    "pictures of another clock": (robot(camera_stamp=lambda now_ns, count: 10**10 + count), {}, CAMERA, "wall time"),
    "pictures from the future": (robot(camera_stamp=age(-0.5)), {}, CAMERA, "in the future"),
    "stale pictures": (robot(camera_stamp=age(2.0)), {}, CAMERA, "s old"),
    "late pictures": (robot(camera_stamp=age(0.3)), {}, CAMERA, "ms old on arrival"),
    "frozen camera": (frozen, {}, CAMERA, "the same stamp"),
    "two drivers of one camera": (robot(images=2), {}, CAMERA, "two drivers"),
    "no joint states": (robot(joint_states=False), {}, JOINT_TOPIC, "nobody publishes it"),
    "joint states of another type": (robot(joints_kind=String), {}, JOINT_TOPIC, "is a std_msgs/msg/String"),
    "a joint is missing": (robot(joint_names=["shoulder"]), {}, JOINT_TOPIC, "elbow missing"),
    "joints have a prefix": (robot(), {"joints__prefix": "left_"}, JOINT_TOPIC, "left_elbow"),
    "a joint is not a number": (robot(position=[0.1, math.nan]), {}, JOINT_TOPIC, "position nan"),
    "positions are missing": (robot(position=[0.1]), {}, JOINT_TOPIC, "1 position values for 2 joints"),
    "joints of another clock": (robot(joint_stamp=age(3 * HOUR_S)), {}, JOINT_TOPIC, "3 h behind"),
    "robot outside of its limits": (robot(), RAISED_LIMITS, JOINT_TOPIC, "shoulder at 0.100"),
    "inputs apart in time": (robot(joint_stamp=age(0.35)), {"inputs__slop_s": 0.05}, "inputs", "stamped"),
    "simulated time without a clock": (robot(), {"sim_time": True}, "clock", "/clock is silent"),
    "no controller": (robot(listens=None), {}, TRAJECTORY, "nobody listens to it"),
    "controller of another type": (robot(listens=Float64MultiArray), {}, TRAJECTORY, "takes std_msgs/msg/Float64"),
    "two writers": (robot(second_writer=True), {}, TRAJECTORY, "robot commands the same controller"),
    "controller of other joints": (with_controller(joints=["shoulder", "wrist"]), {}, CONTROLLER, "elbow"),
    "controller that times out": (with_controller(cmd_timeout=0.01), {}, CONTROLLER, "cmd_timeout"),
    "controller is inactive": (with_manager(**{CONTROLLER: "inactive"}), VERIFY, "controller manager", "is inactive"),
    "manager without our controller": (with_manager(other="active"), VERIFY, "controller manager", "does not know"),
    "no manager": (robot(), VERIFY, "controller manager", "nobody offers the service"),
    "two nodes of one name": (twins, {}, "graph", "2 nodes are called"),
    "no deadman": (robot(), {"require_enable": True}, "graph", "nobody publishes it"),
}


@pytest.fixture(scope="module")
def found(ros_environment) -> dict[str, list[Check]]:
    """{case: what the doctor finds}, of a few cases at a time, each in its namespace; `healthy` has nothing wrong."""
    provide("controller_manager_msgs")
    patient = {"inputs__max_age_s": 10.0}  # a busy machine is late, not ill
    cases = {"healthy": (with_controller(), patient), **{name: case[:2] for name, case in GRAPHS.items()}}
    doctor = rclpy.Context()
    rclpy.init(context=doctor)

    def run(place: int, make, changes: dict) -> list[Check]:
        with bench.case() as case:
            make(case, f"/case_{place}")
            return examine(doctor, f"/case_{place}", **changes)

    with pytest.MonkeyPatch.context() as patch, Workbench() as bench, ThreadPoolExecutor(AT_ONCE) as pool:
        patch.delenv("FASTDDS_DEFAULT_PROFILES_FILE", raising=False)
        jobs = {name: pool.submit(run, place, *case) for place, (name, case) in enumerate(cases.items())}
        results = {name: job.result() for name, job in jobs.items()}
    rclpy.try_shutdown(context=doctor)
    return results


@pytest.mark.parametrize("case", GRAPHS)
def test_what_is_wrong_with_a_graph_is_named(case, found):
    _, _, where, said = GRAPHS[case]
    ill = [check for check in found[case] if check.level > Level.OK]
    assert any(said in f"{check.text} → {check.fix}" for check in ill if check.area.endswith(where)), found[case]
    assert all(check.fix for check in ill)


def test_a_healthy_robot_is_called_healthy(found):
    assert worst(found["healthy"]) < Level.FAIL, found["healthy"]
    assert any("complete" in check.text for check in found["healthy"])
    assert any(check.text == "the policy plans 24 actions from what is there now" for check in found["healthy"])
    assert any(check.text == "camera front gets it as it is" for check in found["healthy"])


def test_what_a_policy_publishes_is_not_suggested_as_its_input():
    joints = "sensor_msgs/msg/JointState"
    topics = [
        ("/policy/status", ["phyai_ros/msg/PolicyStatus"]),
        ("/policy/command", [joints]),
        ("/arm/joints", [joints]),
    ]
    graph = SimpleNamespace(get_topic_names_and_types=lambda: topics, count_publishers=lambda name: 1)
    assert suggest_topics(graph, joints, "/joint_states") == f"correct the topic; published as {joints}: /arm/joints"
