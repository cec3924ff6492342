"""Message types of bags: definitions that a bag carries, the public ones where it carries none, and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rosbags.interfaces import Connection, MessageDefinitionFormat
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

NS_PER_S = 1_000_000_000
PARSERS: dict[MessageDefinitionFormat, Callable[[str, str], Any]] = {
    MessageDefinitionFormat.MSG: get_types_from_msg,
    MessageDefinitionFormat.IDL: lambda text, name: get_types_from_idl(text),
}


class TypeBook:
    """How to decode the messages of one bag. Types are looked up once per connection."""

    def __init__(self) -> None:
        self._public = get_typestore(Stores.LATEST)
        self._stores: dict[str, Typestore] = {}

    def learn(self, connection: Connection) -> str:
        """Get ready for the messages of `connection`. Returns why that is not possible, empty where it is."""
        encoding = getattr(connection.ext, "serialization_format", "cdr")
        if encoding not in ("cdr", ""):
            return f"is encoded as {encoding}; only cdr can be read"
        name = connection.msgtype
        if name in self._stores:
            return ""
        definition = connection.msgdef
        if definition.format == MessageDefinitionFormat.NONE:
            if name not in self._public.fielddefs:
                return f"has the type {name}, whose definition is neither in the bag nor a public one"
            self._stores[name] = self._public
            return ""
        store = get_typestore(Stores.EMPTY)
        try:
            store.register(PARSERS[definition.format](definition.data, name))
            store.get_msgdef(name)
        except Exception as error:  # the text comes from a file; the parser raises all kinds of errors on a bad one
            return f"has the type {name}, whose definition in the bag cannot be understood ({type(error).__name__})"
        self._stores[name] = store
        return ""

    def decode(self, connection: Connection, raw: bytes) -> Any:
        """One message as an object with the fields of its definition. Raises what the decoder raises."""
        writable = bytearray(raw)  # as messages are that come over a topic; arrays are views of it
        return self._stores[connection.msgtype].deserialize_cdr(writable, connection.msgtype)


def stamp_of(msg: Any) -> int:
    """The header stamp in nanoseconds; 0 where there is no header, or no stamp in it."""
    header = getattr(msg, "header", None)
    return 0 if header is None else to_ns(header.stamp)


def to_ns(time: Any) -> int:
    """A builtin_interfaces/Time in nanoseconds."""
    return int(time.sec) * NS_PER_S + int(time.nanosec)
