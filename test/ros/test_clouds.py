"""Guards against: points read from the wrong bytes, fields in another order, points that are no numbers, clouds that
the policy declares and nobody hears, and a cloud that makes an input set although it is old.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from phyai_core.types import CameraSpec, CloudSpec, Feature, PolicySpec, Reason
from phyai_ros.clouds import CloudView, to_points
from phyai_ros.mailbox import Mailbox
from phyai_ros.parameters import build_settings
from phyai_ros.spec_checks import check_against_spec

SPEC = CloudSpec("lidar", 100)
POINTS = np.arange(24, dtype=np.float32).reshape(2, 4, 3)  # two rows of four points
FLOAT32, FLOAT64, UINT16 = 7, 8, 4


def field(name: str, offset: int, datatype: int = FLOAT32, count: int = 1) -> SimpleNamespace:
    return SimpleNamespace(name=name, offset=offset, datatype=datatype, count=count)


def cloud(points=POINTS, order="<", row_padding: int = 0, stamp_ns: int = 0, **changes) -> SimpleNamespace:
    """A message with fields x, y, z as float32, ring as uint16 and time as float64, 24 bytes a point."""
    names, formats = ["x", "y", "z", "ring", "time"], ["f4", "f4", "f4", "u2", "f8"]
    offsets, step = [0, 4, 8, 12, 16], 24
    kind = np.dtype({"names": names, "formats": [order + f for f in formats], "offsets": offsets, "itemsize": step})
    records = np.zeros(points.shape[:2], kind)
    for i, name in enumerate("xyz"):
        records[name] = points[..., i]
    records["ring"], records["time"] = 7, 0.25
    height, width = points.shape[:2]
    rows = np.zeros((height, width * step + row_padding), np.uint8)
    rows[:, : width * step] = records.view(np.uint8).reshape(height, -1)
    stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    values = {"height": height, "width": width, "is_bigendian": order == ">", "point_step": step}
    values |= {"row_step": rows.shape[1], "data": rows.tobytes(), "header": SimpleNamespace(stamp=stamp)}
    datatypes = [FLOAT32, FLOAT32, FLOAT32, UINT16, FLOAT64]
    values["fields"] = [field(*f) for f in zip(names, offsets, datatypes, strict=True)]
    return SimpleNamespace(**{**values, **changes})


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("row_padding", [0, 5])
def test_points_come_as_they_were_in_any_layout(order, row_padding):
    points = to_points(cloud(order=order, row_padding=row_padding), SPEC)
    assert points.dtype == np.float32
    np.testing.assert_array_equal(points, POINTS.reshape(-1, 3))


def test_fields_of_other_types_come_in_the_order_of_the_policy():
    points = to_points(cloud(), CloudSpec("lidar", 100, ("time", "z", "ring")))
    np.testing.assert_array_equal(points[1], [0.25, POINTS[0, 1, 2], 7])


def test_sensor_msgs_py_reads_the_same():
    read = pytest.importorskip("sensor_msgs_py.point_cloud2", reason="needs a ROS installation")
    from sensor_msgs.msg import PointCloud2, PointField

    made = cloud()
    fields = [PointField(**vars(f)) for f in made.fields]
    names = ("height", "width", "is_bigendian", "point_step", "row_step", "data")
    message = PointCloud2(fields=fields, **{name: getattr(made, name) for name in names})
    theirs = read.read_points(message, field_names=["x", "y", "z"])
    np.testing.assert_array_equal(to_points(message, SPEC), np.stack([theirs[n] for n in "xyz"], -1).reshape(-1, 3))


def test_points_that_are_no_numbers_are_left_out_and_many_are_thinned_evenly():
    holes = POINTS.copy()
    holes[0, 1, 2] = np.nan
    assert len(to_points(cloud(holes), SPEC)) == 7
    points = to_points(cloud(), CloudSpec("lidar", 3))
    np.testing.assert_array_equal(points, POINTS.reshape(-1, 3)[[0, 4, 7]])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fields": [field("x", 0), field("y", 4)]}, "no field z, only x, y"),
        ({"fields": [field("x", 0), field("y", 4), field("z", 8, count=3)]}, "field z is no single number"),
        ({"fields": [field("x", 0), field("y", 4), field("z", 22)]}, "field z lies beyond a point of 24 bytes"),
        ({"data": b"short"}, "4 x 2 points do not fit into 5 bytes"),
    ],
)
def test_a_message_that_cannot_be_read_says_why_and_where(changes, said):
    with pytest.raises(ValueError, match=f"/lidar cannot be used: .*{said}"):
        CloudView("/lidar", cloud(**changes), SPEC).decode()


def make_policy(clouds=(SPEC,)) -> PolicySpec:
    joints = (Feature("yaw"),)
    cameras: tuple[CameraSpec, ...] = ()
    return PolicySpec("arm", 8, 0.04, cameras, joints, joints, latent_dim=1, clouds=clouds)


def make_mailbox(now) -> Mailbox:
    settings = build_settings({"inputs.cloud_topics": ["lidar/points"], "rtc.mode": "none"})
    return Mailbox(check_against_spec(settings, make_policy()), make_policy(), now)


def joint_message(stamp_ns: int) -> SimpleNamespace:
    stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    header = SimpleNamespace(stamp=stamp)
    return SimpleNamespace(header=header, name=["yaw"], position=[0.5], velocity=[], effort=[])


def test_a_declared_cloud_reaches_the_observation_and_its_faults_are_inputs_faults():
    now_ns = 1_700_000_000 * 10**9
    box = make_mailbox(lambda: now_ns)
    box.receive_joints(joint_message(now_ns))
    assert "no message yet on lidar/points" in box.sample(now_ns, 0).text
    box.receive_cloud("lidar", cloud(stamp_ns=now_ns))
    sample = box.sample(now_ns, 1)
    np.testing.assert_array_equal(sample.obs.decode().clouds["lidar"], POINTS.reshape(-1, 3))
    assert [source.name for source in sample.obs.sources] == ["lidar/points", "joint_states"]
    assert box.sample(now_ns + 10**9, 2).fault.reason is Reason.INPUT_STALE
    box.receive_cloud("lidar", cloud(stamp_ns=now_ns, fields=[]))
    assert box.sample(now_ns, 3).fault.reason is Reason.INPUT_INVALID


@pytest.mark.parametrize(("topics", "clouds"), [(["a", "b"], (SPEC,)), (["a"], ()), (None, (SPEC,))])
def test_topics_have_to_match_what_the_policy_declares(topics, clouds):
    settings = build_settings({"inputs.cloud_topics": topics, "rtc.mode": "none"})
    with pytest.raises(ValueError, match=r"inputs\.cloud_topics: .* one topic for each point cloud of arm"):
        check_against_spec(settings, make_policy(clouds))


def test_a_cloud_crosses_to_a_child_process():
    from phyai_core.engine import blank_observation
    from phyai_core.wire import _observation, _observation_arrays

    before = blank_observation(make_policy())
    after = _observation(_observation_arrays(before), 0, "")
    assert after.clouds["lidar"].shape == before.clouds["lidar"].shape == (100, 3)
