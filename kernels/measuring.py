"""Measures all candidates of what a policy asks for: how a profile is made. Never while a robot is live."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phyai_kernels.dispatch import Dispatcher, describe_problem
from phyai_kernels.op import Candidate, Op
from phyai_kernels.profile import Profile
from phyai_kernels.timing import make_replay, take_turns

TOLERANCE = 0.05  # relative L2 to the reference: far above rounding, FP8 included, far below a mistake
CALLS = 10  # of a candidate in one run
Told = Callable[[str, str], None]  # (operation, problem) that is measured next


class Call(NamedTuple):
    """One thing that was asked for."""

    op: Op
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def problem(self) -> str:
        return describe_problem(self.arguments, self.options)


class MeasuringDispatcher(Dispatcher):
    """Chooses as any dispatcher and remembers what it was asked for, to measure it afterwards.

    By then buffers hold real values: products of zeros are faster than others. Each candidate's result is compared with
    the reference's first.
    """

    def __init__(self, device: torch.device, profile: Profile | None = None) -> None:
        super().__init__(device, profile)
        if self.profile is None:
            self.profile = Profile.empty(device)
        self.asked: dict[tuple[str, str], Call] = {}

    def pick(self, op: Op, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """As in the base."""
        call = Call(op, arguments, options)
        self.asked.setdefault((op.name, call.problem), call)
        return super().pick(op, *arguments, **options)

    def measure(self, tell: Told = lambda op, problem: None) -> Profile:
        """Measure all that was asked for and is not in the profile. Buffers are really used: contents change."""
        while waiting := [key for key, call in self.asked.items() if not self._known(call)]:
            plain = [key for key in waiting if self.asked[key].op.launch is None]
            call = self.asked[(plain or waiting)[0]]
            if not plain and self._prepare(call):
                continue  # it consists of operations that nobody had asked for
            tell(call.op.name, call.problem)
            for name, figure in self._measure(call).items():
                self.profile.record(call.op.name, call.problem, name, figure)
        return self.profile

    def choose(self) -> Dispatcher:
        """A dispatcher that has been asked the same, with what is measured by now."""
        chooser = Dispatcher(self.device, self.profile)
        for call in self.asked.values():
            chooser.pick(call.op, *call.arguments, **call.options)
        return chooser

    def _known(self, call: Call) -> bool:
        return call.problem in self.profile.times_us.get(call.op.name, {})

    def _able(self, call: Call) -> list[Candidate]:
        def refused(candidate: Candidate) -> str | None:
            return candidate.refuse(self.device, *call.arguments, **call.options)

        return [candidate for candidate in call.op.candidates if refused(candidate) is None]

    def _prepare(self, call: Call) -> bool:
        """Let every candidate ask for what it consists of; True if that was something new."""
        before = len(self.asked)
        for candidate in self._able(call):
            candidate.run(*call.arguments, **call.options)
        return len(self.asked) > before

    def _measure(self, call: Call) -> dict[str, float | str]:
        """By candidate microseconds, or in words why it is out."""
        before = call._replace(arguments=_copy(call.arguments), options=_copy(call.options))
        expected, calls = _expect(before), CALLS if call.op.launch is None else 1
        figures: dict[str, float | str] = {}
        replays = {}
        for candidate in self._able(call):
            try:
                error = 0.0 if expected is None else _error(_result(before, candidate), expected)
                if error > TOLERANCE:
                    figures[candidate.name] = f"wrong result, relative L2 {error:.1e}"
                else:
                    replays[candidate.name] = make_replay(_work(call, candidate), self.device, calls)
            except RuntimeError as problem:
                figures[candidate.name] = str(problem).partition("\n")[0][:200]
        times = take_turns(replays, self.device)
        return figures | {name: time / calls for name, time in times.items()}


def _work(call: Call, candidate: Candidate) -> Callable[[], Any]:
    if call.op.launch is None:
        return lambda: candidate.run(*call.arguments, **call.options)
    made = candidate.run(*call.arguments, **call.options)
    return lambda: call.op.launch(made)


def _expect(call: Call) -> list[Tensor] | None:
    """What the reference gives; None where there is no memory for it."""
    try:
        return _result(call, call.op.candidates[-1])
    except RuntimeError:
        return None


def _result(call: Call, candidate: Candidate) -> list[Tensor]:
    """Everything a candidate could have written, from copies of the arguments; of launches what they return."""
    if call.op.launch is not None:
        made = call.op.launch(candidate.run(*call.arguments, **call.options))
        return [tensor.clone() for tensor in _tensors(made)]
    arguments, options = _copy((call.arguments, call.options))
    candidate.run(*arguments, **options)
    return _tensors((arguments, options))


def _error(result: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative L2 error of any tensor; those that the reference made infinite do not count."""
    errors = [0.0]
    for tensor, right in zip(result, expected, strict=True):
        wide, right_wide = tensor.double(), right.double()
        if bool(right_wide.isfinite().all()):
            error = (wide - right_wide).norm() / right_wide.norm().clamp_min(1e-12)
            errors.append(float(error.nan_to_num(nan=math.inf)))
    return max(errors)


def _copy(value: Any) -> Any:
    """Arguments with every tensor cloned, tuples and dicts kept as they are."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    if isinstance(value, tuple):
        items = [_copy(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _tensors(value: Any) -> list[Tensor]:
    """All tensors of nested arguments, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors(item)]
