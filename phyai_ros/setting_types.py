"""What parameters are made of: groups, entries with unit and bounds, and the kinds of numbers in lists."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from phyai_adapters import ADAPTERS

Positive = Annotated[float, Field(gt=0, le=1000)]
Angle = Annotated[float, Field(ge=-1000, le=1000)]
Core = Annotated[int, Field(ge=0, le=1023)]
Jerk = Annotated[float, Field(gt=0, le=1e6)]
Effort = Annotated[float, Field(gt=0, le=1e5)]
Pixel = Annotated[int, Field(ge=0, le=16384)]
TOPIC = {"pattern": r"^([~/]?[A-Za-z_][\w/]*|~/[A-Za-z_][\w/]*)?$", "allowed": "a topic name"}

Reliability = Literal["best_effort", "reliable", "best_available"]
# best_available is no default: it is settled while subscribing, to reliable where no publisher is known yet, and then
# a best-effort driver that starts later is never heard. best_effort fits every publisher in any order of starting.
RELIABILITY = (
    "Reliability asked of the publisher. best_effort hears every publisher; best_available (not in Humble) is settled "
    "on subscribing, by the publishers there are then: start the drivers first"
)


def entry(
    default: Any, description: str, unit: str = "", allowed: str = "", choices: tuple[str, ...] = (), **bounds: Any
) -> Any:
    """A parameter: default, description, unit and bounds (ge, gt, le, pattern); `allowed` puts a pattern into words.

    `choices` are the words that a validator of the type allows, where the type is no Literal.
    """
    extra = {"unit": unit, "allowed": allowed, "choices": choices}
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def _known_adapter(name: str) -> str:
    if name not in ADAPTERS:
        raise ValueError(name)
    return name


AdapterName = Annotated[str, AfterValidator(_known_adapter)]


class Group(BaseModel):
    """Parameters that share the part of the name before the dot."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
