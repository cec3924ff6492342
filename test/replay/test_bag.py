"""Guards against: bags that cannot be read, tracebacks and hangs on damaged ones, memory that grows with the bag."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer

from phyai_ros.replay.bag import Bag
from phyai_ros.replay.bag_writer import BagWriter, writing_store
from replay.made_bags import CAMERA, JOINTS, START_NS, MadeBag

ALL = 500  # messages of a made bag of 4 s


@pytest.mark.parametrize("plugin", [StoragePlugin.MCAP, StoragePlugin.SQLITE3])
@pytest.mark.parametrize("compression", ["", "message", "file", "storage"])
def test_every_storage_gives_the_same_messages_in_their_order(tmp_path, plugin, compression):
    if plugin is StoragePlugin.SQLITE3 and compression == "storage":
        pytest.skip("sqlite3 has no compression of its own")
    with Bag(MadeBag().write(tmp_path / "bag", plugin, compression)) as bag:
        messages = list(bag.messages())
        assert len(messages) == bag.count == ALL
        assert [message.log_ns for message in messages] == sorted(message.log_ns for message in messages)
        assert bag.start_ns == START_NS and bag.duration_s == pytest.approx(3.99)
        assert bag.topics[CAMERA].type == "sensor_msgs/msg/Image" and bag.topics[CAMERA].count == 100


def test_a_single_file_is_a_bag_too(tmp_path):
    folder = MadeBag().write(tmp_path / "bag")
    with Bag(folder / "bag.mcap") as bag:
        assert sum(1 for _ in bag.messages([JOINTS])) == 400


def test_a_split_bag_is_read_through(tmp_path):
    """Two halves under one metadata.yaml, as a recorder with a size limit leaves them."""
    first, second = MadeBag(seconds=2.0), MadeBag(seconds=4.0)
    one, two = first.write(tmp_path / "one"), second.write(tmp_path / "two")
    (tmp_path / "two" / "one.mcap").write_bytes((one / "one.mcap").read_bytes())
    metadata = (two / "metadata.yaml").read_text().replace("  - two.mcap\n", "  - one.mcap\n  - two.mcap\n", 1)
    (two / "metadata.yaml").write_text(metadata)
    with Bag(two) as bag:
        assert sum(1 for _ in bag.messages()) == 250 + ALL


def test_topics_can_be_renamed(tmp_path):
    with Bag(MadeBag().write(tmp_path / "bag"), {JOINTS: "/robot/joint_states"}) as bag:
        assert "/robot/joint_states" in bag.topics and JOINTS not in bag.topics
        assert {message.topic for message in bag.messages()} == {"/robot/joint_states", CAMERA}
    with (
        pytest.raises(ValueError, match=r"--remap names /nothing, which is not in .*holds /camera"),
        Bag(tmp_path / "bag", {"/nothing": "/x"}),
    ):
        pass


def test_simulated_time_is_that_of_the_stamps(tmp_path):
    made = MadeBag(stamp_shift_s=-1_699_999_000.0)
    with Bag(made.write(tmp_path / "bag"), clock="header") as bag:
        times = [message.log_ns for message in bag.messages()]
        assert times == sorted(times) and bag.start_ns == times[0] == 1000 * 10**9
        assert bag.end_ns == times[-1]


def sentence(path: Path) -> str:
    with pytest.raises(ValueError) as caught, Bag(path) as bag:
        list(bag.messages())
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def test_a_truncated_file_is_one_sentence_with_a_way_out(tmp_path):
    file = MadeBag().write(tmp_path / "bag") / "bag.mcap"
    whole = file.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.99):
        file.write_bytes(whole[: round(share * len(whole))])
        text = sentence(file)
        assert "bag.mcap cannot be read" in text and "mcap recover" in text


def test_damaged_bytes_in_the_middle_are_one_sentence(tmp_path):
    file = MadeBag().write(tmp_path / "bag", compression="storage") / "bag.mcap"
    whole = bytearray(file.read_bytes())
    for first, last in ((150, 400), (2000, 3000), (5600, 6100)):
        file.write_bytes(bytes(whole[:first]) + bytes(last - first) + bytes(whole[last:]))
        text = sentence(file)
        assert "cannot be read" in text or "is damaged" in text


def test_a_damaged_database_is_one_sentence(tmp_path):
    folder = MadeBag().write(tmp_path / "bag", StoragePlugin.SQLITE3)
    file = folder / "bag.db3"
    file.write_bytes(file.read_bytes()[:5000])
    assert "cannot be read" in sentence(folder)


def test_a_file_that_the_metadata_name_is_missing(tmp_path):
    folder = MadeBag().write(tmp_path / "bag")
    (folder / "bag.mcap").unlink()
    text = sentence(folder)
    assert "missing" in text and "bag.mcap" in text and "Copy the missing files" in text


def test_what_is_no_bag_is_said_so(tmp_path):
    assert "does not exist" in sentence(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("hello")
    assert "is not a bag" in sentence(tmp_path / "notes.txt")
    assert "has no metadata.yaml" in sentence(tmp_path)


def test_an_empty_bag_is_said_so(tmp_path):
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        writer.add_connection("/x", "std_msgs/msg/String", typestore=writing_store())
    assert "holds no messages" in sentence(tmp_path / "bag")


def test_an_unknown_type_does_not_hide_the_rest(tmp_path):
    store = writing_store()
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        odd = writer.add_connection("/odd", "robot_msgs/msg/Odd", msgdef="what is this ?!", rihs01="RIHS01_0")
        text = writer.add_connection("/text", "std_msgs/msg/String", typestore=store)
        writer.write(odd, START_NS, b"\x00\x01\x00\x00")
        kind = "std_msgs/msg/String"
        writer.write(text, START_NS + 1, store.serialize_cdr(store.types[kind](data="hello"), kind))
    with Bag(tmp_path / "bag") as bag:
        assert [message.msg.data for message in bag.messages()] == ["hello"]
        assert "robot_msgs/msg/Odd" in bag.topics["/odd"].problem


def test_memory_does_not_grow_with_the_bag(tmp_path):
    store, kind = writing_store(), "std_msgs/msg/UInt8MultiArray"
    layout = store.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    noise = np.random.default_rng(0).integers(0, 255, 1_000_000, np.uint8)
    with BagWriter(tmp_path / "big.mcap") as writer:
        for number in range(60):
            writer.write("/noise", kind, START_NS + number, store.types[kind](layout=layout, data=noise))
    with Bag(tmp_path / "big.mcap") as bag:
        tracemalloc.start()
        count = sum(1 for _ in bag.messages())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == 60 and peak < 12_000_000
