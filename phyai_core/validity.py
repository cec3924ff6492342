"""How long a computed value may be read.

Four lifetimes, each inside the one before: STATIC (as long as the weights are loaded), PROMPT, OBSERVATION, STEP.
Beginning a lifetime expires every value of that lifetime and of the shorter ones: their memory is released, or, in a
captured graph, overwritten. A value is computed once in its lifetime; reading it later is a mistake in the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lifetime(IntEnum):
    """What ends the life of a value: a reload, a new prompt, a new observation, the next denoise step."""

    STATIC = 0
    PROMPT = 1
    OBSERVATION = 2
    STEP = 3


class ExpiredError(RuntimeError):
    """A value was read after its lifetime had ended, or before it was computed in the present one."""


class Kept(Generic[T]):
    """A handle on one computed value; it may be held as long as you like, but read only while the value lives."""

    def __init__(self, name: str, lifetime: Lifetime, value: T):
        self.name, self.lifetime = name, lifetime
        self._values = [value]

    def read(self) -> T:
        """The value. Raises ExpiredError after the end of its lifetime."""
        if not self._values:
            raise ExpiredError(f"{self.name}: read after the end of its {self.lifetime.name} lifetime")
        return self._values[0]

    def expire(self) -> None:
        """Drop the value, so that nobody can read it and its memory is free."""
        self._values.clear()


class Validity:
    """The values of one engine slot by name, each with a declared lifetime. Not for use from two threads."""

    def __init__(self, lifetimes: Mapping[str, Lifetime]):
        self._lifetimes = dict(lifetimes)
        self._kept: dict[str, Kept[Any]] = {}

    def begin(self, lifetime: Lifetime) -> None:
        """Start a new lifetime: the values of the last one and all shorter-lived values expire."""
        for name in [name for name in self._kept if self._lifetimes[name] >= lifetime]:
            self._kept.pop(name).expire()

    def once(self, name: str, compute: Callable[[], T]) -> Kept[T]:
        """The value `name`, computed at the first call in its lifetime. KeyError when `name` was not declared."""
        lifetime = self._lifetimes[name]
        if name not in self._kept:
            self._kept[name] = Kept(name, lifetime, compute())
        return self._kept[name]

    def read(self, name: str) -> Any:
        """The value `name`. Raises ExpiredError when it was not computed in the present lifetime."""
        lifetime = self._lifetimes[name]
        if name not in self._kept:
            raise ExpiredError(f"{name}: not computed in this {lifetime.name} lifetime")
        return self._kept[name].read()
