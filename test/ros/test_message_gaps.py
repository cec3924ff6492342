"""Guards against: losses that nobody counts, and losses counted where two publishers or a restart explain the gap."""

from __future__ import annotations

from phyai_ros.message_gaps import RECENT, MessageGaps


def note(gaps: MessageGaps, numbers, topic="front", gid=b"a") -> None:
    for number in numbers:
        info = {"publication_sequence_number": number} | ({"publisher_gid": {"data": gid}} if gid else {})
        gaps.note(topic, info)


def test_each_number_left_out_counts_once():
    gaps = MessageGaps(["front"])
    note(gaps, [7, 8, 11, 12, 14])
    assert gaps.unseen == {"front": 3}


def test_publishers_are_counted_apart_and_a_restart_begins_anew():
    gaps = MessageGaps([])
    for number in range(1, 20):
        note(gaps, [number], "joints", b"a")
        note(gaps, [100 + number], "joints", b"b")
    note(gaps, [1, 2], "joints", b"a")
    assert gaps.unseen == {"joints": 0}


def test_without_the_publishers_id_only_a_topic_with_one_publisher_counts():
    gaps = MessageGaps(["front"])
    note(gaps, [1, 5], "joints", None)
    note(gaps, [1, 5], "front", None)
    assert gaps.unseen == {"front": 3}


def test_a_middleware_without_numbers_says_nothing():
    gaps = MessageGaps(["front"])
    note(gaps, [None] * RECENT)
    assert gaps.unseen == {} and gaps.remarks() == []


def test_a_camera_that_loses_many_pictures_is_named_until_it_recovers():
    gaps = MessageGaps(["front"])
    note(gaps, range(0, 2 * RECENT, 2))  # the first has none before it
    note(gaps, range(0, 2 * RECENT, 2), "joints")
    (text,) = gaps.remarks()
    assert text.startswith("49% of the messages on front do not come through")
    note(gaps, range(2 * RECENT, 3 * RECENT))
    assert gaps.remarks() == []
