"""Rows of the parameter table, read from the models in settings.py: name, kind, bounds, unit, description."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from phyai_ros.settings import KEYED, Settings


@dataclass(frozen=True)
class Parameter:
    """One row of the table. `kind` is bool, int, float or str (of each entry if `is_list`)."""

    name: str
    kind: type
    is_list: bool
    default: Any
    unit: str
    description: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    low_excluded: bool = False
    allowed_text: str = ""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        options = list(self.choices)
        if self.low is not None and self.high is not None:
            options.append(self._range_text())
        elif not options:
            words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
            options.append(self.allowed_text or words[self.kind])
        text = " or ".join(filter(None, [", ".join(options[:-1]), options[-1]]))
        return f"a list, each entry {text}" if self.is_list else text

    @property
    def default_as_ros(self) -> Any:
        """The default as ROS and YAML take it: lists instead of tuples."""
        return list(self.default) if self.is_list else self.default

    def _range_text(self) -> str:
        start = f"above {self.low:.10g} up to" if self.low_excluded else f"{self.low:.10g} to"
        number = "an integer, " if self.kind is int else ""
        return f"{number}{start} {self.high:.10g} {self.unit}".rstrip()


def parameter_table(camera_keys: Iterable[str] = (), output_keys: Iterable[str] = ()) -> tuple[Parameter, ...]:
    """Every parameter of the node in the order of the table, with a camera or output group for each key."""
    members = {"cameras": tuple(camera_keys), "outputs": tuple(output_keys)}
    rows: list[Parameter] = []
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if not is_group(group):
            rows.append(_row(name, field))
            continue
        rows += [_row(f"{name}.{leaf}", sub) for leaf, sub in group.model_fields.items() if leaf != "by_key"]
        fields = KEYED[name].model_fields if name in KEYED else {}
        rows += [_row(f"{name}.{k}.{leaf}", sub) for k in members.get(name, ()) for leaf, sub in fields.items()]
    return tuple(rows)


def is_group(annotation: Any) -> bool:
    """True for a model of parameters, False for a parameter."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _row(name: str, field: FieldInfo) -> Parameter:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind, is_list, choices, metadata = _shape(field.annotation, list(field.metadata))
    bounds = {key: getattr(item, key) for item in metadata for key in ("ge", "gt", "le") if hasattr(item, key)}
    return Parameter(
        name=name,
        kind=kind,
        is_list=is_list,
        default=field.default,
        unit=str(extra.get("unit", "")),
        description=field.description or "",
        choices=choices or tuple(extra.get("choices", ())),
        low=bounds.get("ge", bounds.get("gt")),
        high=bounds.get("le"),
        low_excluded="gt" in bounds,
        allowed_text=str(extra.get("allowed", "")),
    )


def _shape(annotation: Any, metadata: list[Any]) -> tuple[type, bool, tuple[str, ...], list[Any]]:
    """Annotation -> (scalar kind, is_list, choices, bounds found on the way)."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        kind, _, choices, inner = _shape(args[0], metadata)
        return kind, True, choices, inner
    if origin is Literal:
        return str, False, args, metadata
    if origin is typing.Annotated:
        return _shape(args[0], metadata + [bound for field in args[1:] for bound in field.metadata])
    if origin in (typing.Union, types.UnionType):  # words or a number
        (_, _, choices, _), (kind, _, _, inner) = _shape(args[0], []), _shape(args[1], metadata)
        return kind, False, choices, inner
    return annotation, False, (), metadata
