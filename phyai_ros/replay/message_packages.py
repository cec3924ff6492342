"""Message classes for machines without ROS: `from sensor_msgs.msg import JointState` works for plain stand-ins.

The outputs of the node make ROS messages. Where a ROS installation is found its classes are used; this fills in only
what cannot be imported otherwise. A stand-in has the fields of the public definition, with the defaults of ROS.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rosbags.interfaces import Nodetype
from rosbags.typesys.store import Typestore

from phyai_ros.replay.bag_writer import writing_store


def provide_message_packages() -> None:
    """Once per process, before anything imports message packages; does nothing where they exist."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder(writing_store()))


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line of the import system: asked only for what no installation has."""

    def __init__(self, store: Typestore) -> None:
        self._store = store
        self._packages = {name.split("/")[0] for name in store.fielddefs}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package not in self._packages or rest not in ("", "msg"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=not rest)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        package, _, rest = module.__name__.partition(".")
        for name in self._store.fielddefs if rest else ():
            owner, _, kind = name.split("/")
            if owner == package:
                setattr(module, kind, make_class(self._store, name))


def make_class(store: Typestore, name: str) -> type:
    """A stand-in for the message class `name` (package/msg/Name)."""
    constants, fields = store.fielddefs[name]

    def initialise(self: Any, **values: Any) -> None:
        unknown = sorted(set(values) - {field for field, _ in fields})
        if unknown:
            raise AttributeError(f"{name} has no field {', '.join(unknown)}")
        for field, kind in fields:
            setattr(self, field, values[field] if field in values else _default(store, kind))

    package, _, short = name.split("/")
    body = {constant: value for constant, _, value in constants} | {"__init__": initialise}
    return type(short, (), {**body, "__module__": f"{package}.msg._{short.lower()}"})


def _default(store: Typestore, kind: Any) -> Any:
    node, detail = kind
    if node == Nodetype.NAME:
        return make_class(store, detail)()
    if node == Nodetype.BASE:
        return {"string": "", "bool": False, "float32": 0.0, "float64": 0.0}.get(detail[0], 0)
    element, count = detail
    return [_default(store, element) for _ in range(count)] if node == Nodetype.ARRAY else []
