"""An engine in a child process, with the methods of Engine: the placement for policies on a GPU.

The child is immune to what the node's interpreter does, and it can be killed. When it dies or hangs, every call raises
ChildLost until `restart`, and nothing it computed arrives any more.
"""

from __future__ import annotations

import time

import numpy as np
from torch import Tensor

from phyai_core.child_process import ChildProcess
from phyai_core.engine import EngineResult, Progress, blank_request
from phyai_core.recipe import EngineRecipe
from phyai_core.rtc import RtcTables
from phyai_core.shared_ring import SharedRing
from phyai_core.types import FloatArray, Observation, PolicySpec
from phyai_core.wire import (
    SLOTS,
    Done,
    Failed,
    Infer,
    Loaded,
    Progressed,
    Warm,
    WarmUp,
    chunk_layout,
    request_arrays,
    request_numbers,
)


class RemoteEngine:
    """Construction loads the policy in a new child. For one thread at a time, but `alive` and `loss` for any."""

    def __init__(
        self,
        recipe: EngineRecipe,
        hang_after_s: float = 10.0,
        beat_within_s: float = 1.0,
        start_within_s: float = 600.0,
    ) -> None:
        """Deadlines: of one inference, of a sign of life while it is awaited, of loading and of warming up.

        Raises ValueError with the policy's own words, ChildLost if the child does not come up.
        """
        self._recipe = recipe
        self._hang_after_s, self._beat_within_s, self._start_within_s = hang_after_s, beat_within_s, start_within_s
        self._seq = 0
        self._inference_s = 0.0  # how long the last one took
        self.kernel_choices = ""  # as Engine.kernel_choices
        self.spec = self._start()

    def _start(self) -> PolicySpec:
        self._requests, self._chunks = SharedRing(SLOTS), SharedRing(SLOTS)
        self._child = ChildProcess("phyai_core.child", (self._requests.fd, self._chunks.fd), self._beat_within_s)
        try:
            self._child.send(self._recipe)
            spec = self._await(Loaded, self._start_within_s).spec
        except (ValueError, RuntimeError):
            self.close()
            raise
        self._chunks.lay_out(chunk_layout(spec))
        return spec

    @property
    def guidance(self) -> str | None:
        """As Engine.guidance."""
        return self._recipe.guidance

    @property
    def alive(self) -> bool:
        return self._child.alive

    @property
    def loss(self) -> str:
        """How the child was lost; empty while it is there."""
        return self._child.loss

    @property
    def pid(self) -> int:
        return self._child.pid

    def warm_up(self, runs: int = 3, progress: Progress | None = None) -> list[float]:
        """As Engine.warm_up. One more inference, the last of those returned, goes all the way there and back."""
        self._child.send(WarmUp(runs))
        warm = self._await(Warm, self._start_within_s, progress=progress)
        self.kernel_choices = warm.kernel_choices
        started_ns = time.perf_counter_ns()
        self.infer(*blank_request(self.spec))
        return [*warm.seconds, (time.perf_counter_ns() - started_ns) * 1e-9]

    def infer(self, obs: Observation, tables: RtcTables, noise: FloatArray | Tensor) -> EngineResult:
        """As Engine.infer. Raises ChildLost at the latest when the deadline of one inference has passed."""
        self._seq += 1
        layout = self._requests.write(self._seq, request_arrays(obs, tables, np.asarray(noise, np.float32)))
        started_s = time.monotonic()
        self._child.send(Infer(self._seq, layout, obs.stamp_ns, obs.prompt, request_numbers(tables)))
        done = self._await(Done, self._hang_after_s, watch_heartbeat=True, expected_s=self._inference_s)
        self._inference_s = time.monotonic() - started_s
        assert done.seq == self._seq, (done.seq, self._seq)
        chunk = self._chunks.views(done.seq)
        return EngineResult(chunk["latent"].copy(), chunk["actions"].copy(), done.stages_s)

    def check(self) -> None:
        """Between inferences. Raises ChildLost when the child has died meanwhile."""
        self._child.check()

    def restart(self, runs: int = 3, progress: Progress | None = None) -> None:
        """A fresh child for the same policy, warmed up. Raises as construction does; the engine then stays lost."""
        self.close()
        try:
            if self._start() != self.spec:
                raise ValueError(f"checkpoint: {self._recipe.checkpoint} has changed; configure the node again")
            self.warm_up(runs, progress)
        except (ValueError, RuntimeError) as error:
            self._child.loss = self._child.loss or f"the policy process could not be restarted: {error}"
            raise

    def close(self) -> None:
        """End the child and let go of the shared memory."""
        self._child.close()
        self._requests.close()
        self._chunks.close()

    def _await(
        self,
        kind: type,
        within_s: float,
        watch_heartbeat: bool = False,
        progress: Progress | None = None,
        expected_s: float = 0.0,
    ):
        """The next message of this kind; `within_s` counts anew with each sign of progress."""
        while not isinstance(message := self._child.receive(within_s, watch_heartbeat, expected_s), kind):
            if isinstance(message, Failed):
                raise (ValueError if message.user_error else RuntimeError)(message.text)
            if isinstance(message, Progressed) and progress is not None:
                progress(message.done, message.total)
        return message
