"""Several robots, one policy: whose requests run next, in which batch, on which devices.

A group is what runs one batch: an engine on one device, or several devices that split the model (tensor parallel) or
the branches of guidance (CFG) among themselves; on one device these are rows of one batch. Several groups of the same
policy work side by side (data parallel). Nobody waits for a batch to fill: a group that is free takes what is
there, most urgent first.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from phyai_core.engine import EngineResult, PreparedRequest
from phyai_core.rtc import RtcTables
from phyai_core.types import FloatArray, Observation, PolicySpec


class Group(Protocol):
    """What a scheduler needs of an engine, whatever number of devices it spans."""

    spec: PolicySpec
    guidance: str | None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batches it was prepared for, ascending; a batch in between is filled up to the next."""

    def preprocess(self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor) -> PreparedRequest:
        """Check and convert a request; from any thread."""

    def run(self, requests: Sequence[PreparedRequest]) -> list[EngineResult]:
        """One batch; each robot gets what it would get alone."""


@dataclass(order=True)
class _Waiting:
    deadline_s: float
    order: int  # first come, first served among equals
    request: PreparedRequest = field(compare=False)
    result: Future[EngineResult] = field(compare=False)


class Scheduler:
    """Shared by the inference threads of all robots; to each of them it looks like an engine."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """`groups` run the same policy. Raises ValueError when they do not."""
        specs = {group.spec for group in groups}
        if len(specs) != 1:
            raise ValueError(f"scheduler: {len(specs)} policies given; allowed are one or more groups of one policy")
        self.groups = tuple(groups)
        self.spec, self.guidance = groups[0].spec, groups[0].guidance
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._order = itertools.count()
        self._stopped = False
        self._threads = [threading.Thread(target=self._serve, args=(group,), daemon=True) for group in groups]

    def start(self) -> None:
        """One thread per group from here on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the batches that run; requests that still wait fail."""
        with self._changed:
            self._stopped = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for item in waiting:
            item.result.set_exception(RuntimeError("the scheduler was stopped before this request ran"))
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def submit(
        self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor, deadline_s: float = math.inf
    ) -> Future[EngineResult]:
        """Queue one request. `deadline_s` (any clock, the same for all) says how urgent it is; late ones still run.

        Raises at once what the policy says to an observation that does not fit: no other robot is concerned.
        """
        request = self.groups[0].preprocess(obs, tables, noise)
        with self._changed:
            if self._stopped:
                raise RuntimeError("the scheduler is stopped")
            item = _Waiting(deadline_s, next(self._order), request, Future())
            heapq.heappush(self._waiting, item)
            self._changed.notify()
        return item.result

    def infer(self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor) -> EngineResult:
        """Queue one request and wait for its result; the threads have to run."""
        return self.submit(obs, tables, noise).result()

    def step(self, group: Group) -> int:
        """Run the most urgent requests on `group` as one batch, in this thread. Returns how many."""
        batch = self._take(group.batch_sizes[-1])
        if not batch:
            return 0
        try:
            results = group.run([item.request for item in batch])
        except Exception as error:
            for item in batch:
                item.result.set_exception(error)
        else:
            for item, result in zip(batch, results, strict=True):
                item.result.set_result(result)
        return len(batch)

    def _take(self, at_most: int) -> list[_Waiting]:
        with self._changed:
            return [heapq.heappop(self._waiting) for _ in range(min(at_most, len(self._waiting)))]

    def _serve(self, group: Group) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped:
                    return
            self.step(group)
