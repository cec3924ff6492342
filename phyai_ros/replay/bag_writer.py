"""Writes bags with the definitions of their messages inside, so that Foxglove and `ros2 bag` open them anywhere."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

OWN_MESSAGES = ("ActionChunk", "ControlTiming", "PolicyMetadata", "PolicyStatus", "TickTrace")


class BagWriter:
    """An mcap file, or a rosbag2 folder where `path` does not end in .mcap; use as a context manager.

    Raises ValueError where `path` exists. The file appears when it is complete.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise ValueError(f"{path} exists already; give another name, or delete it first.")
        self.path = path
        self.store = writing_store()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=".bag_"))
        self._writer = Writer(self._folder / path.stem, version=9, storage_plugin=StoragePlugin.MCAP)
        self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        self._connections: dict[tuple[str, str], Any] = {}
        self._writer.open()

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.close()
        if kind is None:
            made = self._folder / self.path.stem
            shutil.move(made / f"{self.path.stem}.mcap" if self.path.suffix == ".mcap" else made, self.path)
        shutil.rmtree(self._folder)

    def write(self, topic: str, type_name: str, log_ns: int, msg: Any) -> None:
        """A message of any message class with the fields of `type_name` (for example sensor_msgs/msg/JointState)."""
        raw = self.store.serialize_cdr(to_store(self.store, type_name, msg), type_name)
        self.write_raw(topic, type_name, log_ns, raw)

    def write_raw(self, topic: str, type_name: str, log_ns: int, raw: bytes | memoryview) -> None:
        """A message that is serialised already."""
        connection = self._connections.get((topic, type_name))
        if connection is None:
            connection = self._writer.add_connection(topic, type_name, typestore=self.store)
            self._connections[(topic, type_name)] = connection
        self._writer.write(connection, log_ns, raw)


def writing_store() -> Typestore:
    """The public messages and ours."""
    store = get_typestore(Stores.LATEST)
    folder = find_message_folder()
    for name in OWN_MESSAGES:
        store.register(get_types_from_msg((folder / f"{name}.msg").read_text(), f"phyai_ros/msg/{name}"))
    return store


def find_message_folder() -> Path:
    """Where the definitions of our messages lie: in the source tree, or in share/phyai_ros of an installation."""
    here = Path(__file__).resolve()
    candidates = [here.parents[2] / "msg", Path(sys.prefix) / "share" / "phyai_ros" / "msg"]
    candidates += [parent / "share" / "phyai_ros" / "msg" for parent in here.parents]
    for folder in candidates:
        if (folder / f"{OWN_MESSAGES[0]}.msg").is_file():
            return folder
    raise ValueError("the message definitions of phyai_ros are not installed; install the package again.")


def to_store(store: Typestore, type_name: str, msg: Any) -> Any:
    """A message of another library as a message of `store`, field by field."""
    constants_and_fields = store.fielddefs[type_name][1]
    values = {name: _convert(store, kind, getattr(msg, name)) for name, kind in constants_and_fields}
    return store.types[type_name](**values)


def _convert(store: Typestore, kind: Any, value: Any) -> Any:
    node, detail = kind
    if node == Nodetype.NAME:
        return to_store(store, detail, value)
    if node == Nodetype.BASE:
        return _plain(detail[0], value)
    element, base = detail[0]
    if element == Nodetype.NAME:
        return [to_store(store, base, entry) for entry in value]
    if base[0] == "string":
        return [str(entry) for entry in value]
    return np.asarray(value, dtype="uint8" if base[0] in ("octet", "byte", "char") else base[0])


def _plain(base: str, value: Any) -> Any:
    """Numpy scalars are not accepted everywhere."""
    if isinstance(value, bytes):  # how rclpy gives a byte
        return value[0]
    return value.item() if isinstance(value, np.generic) else value


def type_name(kind: type) -> str:
    """A message class as bags name it, for example sensor_msgs/msg/Image."""
    package = kind.__module__.split(".")[0]
    return f"{package}/msg/{kind.__name__}"
