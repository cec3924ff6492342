"""Recorded messages, one after the other: rosbag2 folders (sqlite3, mcap; compressed; split) and single files.

Only one message, or one chunk of an mcap file, is in memory at a time. Whatever is wrong with a file becomes one
sentence (ValueError).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader, ReaderError

from phyai_ros.replay.bag_types import TypeBook, stamp_of

SUFFIXES = (".mcap", ".db3")
CLOCKS = ("log", "header")


@dataclass(frozen=True)
class Topic:
    """What a bag says about one topic. `problem` says why its messages cannot be read; empty where they can."""

    name: str
    type: str  # for example sensor_msgs/msg/Image
    count: int
    problem: str = ""


@dataclass(frozen=True)
class BagMessage:
    """One message. `log_ns` is when the recorder got it: nanoseconds since the epoch, or what it took for ROS time."""

    topic: str
    type: str
    log_ns: int
    msg: Any


class Bag:
    """A bag that is open for reading; use as a context manager.

    `renamed` {name in the bag: name to read it under} is applied before anything else. Raises ValueError where the bag
    is missing, damaged or empty, saying what to do. `clock` is what ROS time was: log (when the recorder got a message)
    or header (its stamp), for bags of simulated time.
    """

    def __init__(self, path: Path, renamed: Mapping[str, str] | None = None, clock: str = "log") -> None:
        if clock not in CLOCKS:
            raise ValueError(f"--clock is {clock!r}; allowed is {' or '.join(CLOCKS)}.")
        self.path, self._by_stamp = path, clock == "header"
        self._renamed = dict(renamed or {})
        self._reader = _find_reader(path)
        self._types = TypeBook()

    def __enter__(self) -> Bag:
        with _damage_as_sentence(self.path):
            self._reader.open()
        if not self._reader.message_count:
            self._reader.close()
            raise ValueError(f"{self.path} holds no messages; check that the recorder saw the topics.")
        self._check_renamed()
        self.start_ns, self.end_ns = self._reader.start_time, self._reader.end_time - 1
        self.count: int = self._reader.message_count
        self.topics = self._list_topics()
        if self._by_stamp:
            self._find_stamped_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def duration_s(self) -> float:
        """From the first message to the last one."""
        return (self.end_ns - self.start_ns) * 1e-9

    def holds(self, topic: str) -> bool:
        """Whether there is a message on this topic."""
        return topic in self.topics and self.topics[topic].count > 0

    def since_start_s(self, log_ns: int) -> float:
        """Bag time: seconds since the first message."""
        return (log_ns - self.start_ns) * 1e-9

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """All readable messages of `topics` (None: of every topic) in the order in which they were recorded.

        With the clock `header` a message comes at its stamp; one without a stamp, or an older one, at the last stamp.
        """
        messages = self._logged_messages(topics)
        return self._stamped(messages) if self._by_stamp else messages

    def _stamped(self, messages: Iterator[BagMessage]) -> Iterator[BagMessage]:
        now_ns = self.start_ns
        for message in messages:
            now_ns = max(now_ns, stamp_of(message.msg))
            yield replace(message, log_ns=now_ns)

    def _find_stamped_time(self) -> None:
        """Start and end by the stamps: one more pass over the bag."""
        stamps = [stamp for message in self._logged_messages(None) if (stamp := stamp_of(message.msg))]
        if not stamps:
            self._reader.close()
            raise ValueError(f"{self.path} has no message with a stamp; --clock header cannot be used with it.")
        self.start_ns, self.end_ns = stamps[0], max(stamps)

    def _logged_messages(self, topics: Collection[str] | None) -> Iterator[BagMessage]:
        connections = [
            connection
            for connection in self._reader.connections
            if not self.topics[name := self._name(connection)].problem and (topics is None or name in topics)
        ]
        if not connections:
            return
        records = self._reader.messages(connections)
        read, expected = 0, sum(connection.msgcount for connection in connections)
        while True:
            with _damage_as_sentence(self.path):
                record = next(records, None)
            if record is None:
                break
            read += 1
            connection, log_ns, raw = record
            with _damage_as_sentence(self.path):
                msg = self._types.decode(connection, raw)
            yield BagMessage(self._name(connection), connection.msgtype, log_ns, msg)
        if read < expected:  # a parser that skips what it does not understand would hide the damage
            lost = f"{read} of {expected} messages are there"
            raise ValueError(f"{self.path} is damaged: {lost}. {_advise(self.path, lost)}")

    def _name(self, connection: Connection) -> str:
        return self._renamed.get(connection.topic, connection.topic)

    def _list_topics(self) -> dict[str, Topic]:
        topics: dict[str, Topic] = {}
        for connection in self._reader.connections:
            name = self._name(connection)
            problem = self._types.learn(connection)
            before = topics.get(name)
            if before is not None and before.type != connection.msgtype:
                problem = f"comes with two types, {before.type} and {connection.msgtype}"
            count = connection.msgcount + (before.count if before else 0)
            topics[name] = Topic(name, connection.msgtype, count, problem or (before.problem if before else ""))
        return dict(sorted(topics.items()))

    def _check_renamed(self) -> None:
        there = {connection.topic for connection in self._reader.connections}
        unknown = sorted(set(self._renamed) - there)
        if unknown:
            self._reader.close()
            raise ValueError(
                f"--remap names {', '.join(unknown)}, which is not in {self.path}; it holds {', '.join(sorted(there))}."
            )


def _find_reader(path: Path) -> Reader:
    if not path.exists():
        raise ValueError(f"{path} does not exist; give a rosbag2 folder, or an .mcap or .db3 file.")
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        files = sorted(file.name for file in path.iterdir() if file.suffix in SUFFIXES)
        fix = (
            f"give one of its files ({', '.join(files)}), or run ros2 bag reindex" if files else "give a rosbag2 folder"
        )
        raise ValueError(f"{path} has no metadata.yaml: not a rosbag2 folder, or its recording was cut short; {fix}.")
    if path.is_file() and path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is not a bag; allowed is a rosbag2 folder, or a file ending in .mcap or .db3.")
    return Reader(path)


@contextmanager
def _damage_as_sentence(path: Path):
    """The parsers of bag formats raise all kinds of errors on damaged bytes; to the user they mean one thing."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, ReaderError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} cannot be read: {reason.rstrip('.')}. {_advise(path, reason)}") from error


def _advise(path: Path, reason: str) -> str:
    if "missing" in reason and "files" in reason:
        return "Copy the missing files beside metadata.yaml, or give the files that exist one by one."
    if path.suffix == ".mcap" or any(path.glob("*.mcap")):
        return "Where the recording was cut short, mcap recover FILE -o NEW.mcap saves what was written."
    return "Copy the recording again; a cut-short .db3 file can be repaired with sqlite3 FILE .recover."
