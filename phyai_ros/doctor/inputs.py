"""The policy's input topics on the live graph: there, of the right kind, fast enough, well stamped, with the joints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from phyai_core.engine import blank_request
from phyai_core.types import PolicySpec
from phyai_ros.doctor.checks import Check, Level, fail, ok, split_fix, warn, worst
from phyai_ros.doctor.hearing import Heard, Hearing
from phyai_ros.doctor.machine import LARGE_IMAGE_BYTES, has_large_segment
from phyai_ros.image_bridge import check_message
from phyai_ros.joints import JointMap, robot_joint_names
from phyai_ros.limit_sources import resolve_limits
from phyai_ros.robot_checks import joint_actions
from phyai_ros.settings import Settings
from phyai_ros.stamps import StampLimits, judge_stamp

if TYPE_CHECKING:
    from rclpy.node import Node

    from phyai_ros.assembly import LoadedPolicy
    from phyai_ros.sample import InputSet

SLOWEST_CAMERA = 0.5  # of the policy's rate
LATE_SHARE = 0.5  # of inputs.max_age_s
STATUS = "phyai_ros/msg/PolicyStatus"  # a policy's own topics lie beside it, and are no inputs


def check_inputs(node: Node, policy: LoadedPolicy, hearing: Hearing) -> list[Check]:
    """`hearing` has run."""
    settings, spec = policy.settings, policy.spec
    checks: list[Check] = list(_check_clock(node))
    for key, heard in hearing.cameras.items():
        checks += _check_topic(node, heard, hearing) or _check_camera(heard, key, settings, spec)
        checks.append(ok(heard.topic, "view", f"camera {key} gets it {hearing.inputs.views[key].describe()}"))
    checks += _check_topic(node, hearing.joints, hearing) or _check_joints(hearing.joints, settings, spec)
    fix = "synchronise it (chrony), or stamp on arrival"
    checks += [warn("clock", "offset", text, fix) for text in hearing.inputs.clocks.remarks()]
    checks += [warn("messages", "lost", *text.split("; ", 1)) for text in hearing.inputs.gaps.remarks()]
    if worst(checks) < Level.FAIL:
        checks += _check_set(node, policy, hearing)
    return checks


def _check_clock(node: Node) -> Iterator[Check]:
    simulated = node.get_parameter("use_sim_time").value
    if simulated and node.get_clock().now().nanoseconds == 0:
        fix = "start the simulator or ros2 bag play --clock, or set use_sim_time to false"
        yield fail("clock", "/clock", "use_sim_time is set and /clock is silent", fix)
    if not simulated and node.count_publishers("/clock"):
        fix = "set use_sim_time to true, if the robot is simulated or replayed"
        yield warn("clock", "/clock", "somebody publishes /clock, and use_sim_time is not set", fix)


def _check_topic(node: Node, heard: Heard, hearing: Hearing) -> list[Check]:
    """What keeps every message from coming; empty where the node would get them."""
    publishers = node.get_publishers_info_by_topic(heard.topic)
    wanted = _type_name(heard.kind)
    others = sorted({info.topic_type for info in publishers} - {wanted})
    if not publishers:
        near = suggest_topics(node, wanted, heard.topic)
        return [fail(heard.topic, "publisher", "nobody publishes it", near or "start its driver, or correct the topic")]
    if others:
        transport = "cameras.<key>.transport" if "Image" in wanted else "inputs.joint_states_topic"
        text = f"it is a {', '.join(others)}, not a {wanted}"
        return [fail(heard.topic, "type", text, f"correct {transport} or the topic name")]
    unfit = [text for text in hearing.inputs.warnings if f" {heard.topic} do not arrive" in text]
    if unfit:
        return [fail(heard.topic, "quality of service", unfit[0], "ask for best_effort in the parameter of its qos")]
    if not heard.arrivals_ns:
        return [fail(heard.topic, "messages", "it is published, and nothing arrives", "see whether its driver hangs")]
    return []


def suggest_topics(node: Node, wanted: str, topic: str) -> str:
    """The fix that names what is published with the type that `topic` should have; empty where nothing is."""
    topics = node.get_topic_names_and_types()
    policies = tuple(name.removesuffix("status") for name, kinds in topics if STATUS in kinds)
    there = [name for name, kinds in topics if wanted in kinds and name != topic and not name.startswith(policies)]
    publishing = [name for name in there if node.count_publishers(name)]
    return f"correct the topic; published as {wanted}: {', '.join(sorted(publishing)[:4])}" if publishing else ""


def _check_camera(heard: Heard, key: str, settings: Settings, spec: PolicySpec) -> list[Check]:
    camera = next(camera for camera in spec.cameras if camera.key == key)
    checks = [*_check_sources(heard), *_check_stamps(heard, settings), *_check_rate(heard, spec)]
    try:
        check_message(heard.newest)
    except ValueError as error:
        return [*checks, fail(heard.topic, "image", str(error), "let the driver send rgb8 or bgr8, or jpeg")]
    height, width = getattr(heard.newest, "height", camera.height), getattr(heard.newest, "width", camera.width)
    if width * camera.height * 4 < camera.width * height * 3 or width * camera.height * 3 > camera.width * height * 4:
        text = f"its pictures are {width} x {height}, the policy saw {camera.width} x {camera.height}"
        checks.append(warn(heard.topic, "shape", text, f"crop it to the shape of the training ({key})"))
    size = len(heard.newest.data)
    if size > LARGE_IMAGE_BYTES and not has_large_segment():
        fix = "set FASTDDS_DEFAULT_PROFILES_FILE to config/fastdds_shm.xml, for the driver too"
        checks.append(
            warn(heard.topic, "size", f"{size / 1000:.0f} kB an image, more than default settings carry", fix)
        )
    return checks or [ok(heard.topic, "camera", f"{heard.rate_hz:.0f} Hz, {width} x {height}")]


def _check_sources(heard: Heard) -> list[Check]:
    backward = int(np.sum(np.diff(heard.stamps_ns) < 0))
    if backward > 0.2 * len(heard.stamps_ns):
        return [fail(heard.topic, "publishers", "stamps jump to and fro: two drivers publish it", "end one of them")]
    return []


def _check_rate(heard: Heard, spec: PolicySpec) -> list[Check]:
    if 0.0 < heard.rate_hz < SLOWEST_CAMERA / spec.dt_s:
        text = f"{heard.rate_hz:.1f} Hz, the policy runs at {1 / spec.dt_s:g} Hz"
        return [warn(heard.topic, "rate", text, "raise the rate of the driver, or look for lost messages")]
    return []


def _check_stamps(heard: Heard, settings: Settings) -> list[Check]:
    rules = settings.inputs
    if len(heard.stamps_ns) > 3 and len(set(heard.stamps_ns)) == 1 and heard.stamps_ns[0]:
        text = f"{len(heard.stamps_ns)} messages carry the same stamp"
        return [fail(heard.topic, "stamps", text, "restart the driver: it repeats one sample")]
    limits = StampLimits(rules.max_age_s, rules.future_tolerance_s)
    if heard.stamps_ns[-1] == 0 and rules.zero_stamps == "arrival":
        return []
    fault = judge_stamp(heard.topic, heard.stamps_ns[-1], heard.arrivals_ns[-1], limits)
    if fault is not None:
        return [fail(heard.topic, "stamps", fault.text, "correct the stamp, the clock, or the limit it names")]
    ages_s = (np.array(heard.arrivals_ns) - np.array(heard.stamps_ns)) * 1e-9
    if np.median(ages_s) > LATE_SHARE * rules.max_age_s:
        text = f"samples are {np.median(ages_s) * 1e3:.0f} ms old on arrival, of {rules.max_age_s * 1e3:.0f} ms allowed"
        return [warn(heard.topic, "age", text, "look for the delay between exposure and publishing")]
    return []


def _check_joints(heard: Heard, settings: Settings, spec: PolicySpec) -> list[Check]:
    joint_map = JointMap(spec, settings.joints, bool(settings.tracking.max_effort), joint_actions(settings, spec))
    names = list(heard.newest.name)
    missing = sorted(joint_map.required - set(names))
    checks = _check_stamps(heard, settings)
    if missing:
        text = f"{', '.join(missing)} missing; it names {', '.join(names) or 'none'}"
        return [*checks, fail(heard.topic, "joints", text, "correct joints.names or joints.prefix")]
    problem = joint_map.check(heard.newest, joint_map.layout(names))
    if problem:
        return [*checks, fail(heard.topic, "joints", problem, "mend the publisher of the joint states")]
    checks += _check_pose(heard, settings, spec)
    return checks or [ok(heard.topic, "joints", f"{heard.rate_hz:.0f} Hz, {len(names)} joints")]


def _check_pose(heard: Heard, settings: Settings, spec: PolicySpec) -> list[Check]:
    """Joints that stand outside of the limits, from where every chunk would be refused."""
    names, measured = (
        robot_joint_names(settings.joints, spec),
        dict(zip(heard.newest.name, heard.newest.position, strict=False)),
    )
    try:
        limits = resolve_limits(names, settings.limits)
    except ValueError:  # told with the parameters
        return []
    joints = [(name, measured[name], i) for i, name in enumerate(names) if name in measured]
    outside = [f"{name} at {at:.3f}" for name, at, i in joints if not limits.lower[i] <= at <= limits.upper[i]]
    if outside:
        fix = "move the robot inside, or correct limits.position_lower and _upper"
        return [fail(heard.topic, "pose", f"outside of the limits: {', '.join(outside)}", fix)]
    return []


def _check_set(node: Node, policy: LoadedPolicy, hearing: Hearing) -> list[Check]:
    """Whether the node would find one complete set of inputs now, and the policy make a chunk of it."""
    sample = hearing.inputs.sample(node.get_clock().now().nanoseconds, 0)
    if sample.fault is not None:
        fix = "bring the stamps of the inputs together, or raise inputs.slop_s"
        return [fail("inputs", "set", sample.fault.text, fix)]
    whole = ok("inputs", "set", f"complete, {sample.spread_s * 1e3:.0f} ms between oldest and newest")
    return [whole, _check_chunk(policy, sample.obs)]


def _check_chunk(policy: LoadedPolicy, inputs: InputSet) -> Check:
    _, tables, noise = blank_request(policy.spec)
    try:
        actions = policy.engine.infer(inputs.decode(), tables, noise).actions
    except Exception as error:  # the policy's own code, which the node would report in the same words
        what, fix = split_fix(str(error))
        return fail("inputs", "chunk", what, fix or "give the policy what it asks for")
    if not np.isfinite(actions).all():
        return fail("inputs", "chunk", "the policy plans values that are not finite", "check its weights: verify")
    return ok("inputs", "chunk", f"the policy plans {len(actions)} actions from what is there now")


def _type_name(kind: type) -> str:
    return f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
