"""A two-joint policy whose rows say where they come from, and a loop that runs an executor on a logical clock."""

from __future__ import annotations

import numpy as np

from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.stepping import SteppedInference
from phyai_core.types import ActionChunk, Command, Feature, InferenceRequest, PolicySpec

DT_S = 0.04
OBS = object()


def make_spec(horizon: int) -> PolicySpec:
    joints = (Feature("a"), Feature("b"))
    return PolicySpec("rig", horizon, DT_S, (), joints, joints, latent_dim=2, num_denoise_steps=5)


def make_chunk(request: InferenceRequest, horizon: int) -> ActionChunk:
    """Row i is (seq, base + i): the tick it belongs to stands in the row itself."""
    ticks = request.base_tick + np.arange(horizon)
    actions = np.stack([np.full(horizon, request.seq), ticks], 1).astype(np.float32)
    return ActionChunk(request.epoch, request.seq, request.base_tick, 0, actions, actions, int(DT_S * 1e9))


class Rig:
    """Executor, stepped inference and a trace of what every tick did."""

    def __init__(self, horizon: int, delays, infer=None, guard=None, then: int = 1, **config):
        self.spec = make_spec(horizon)
        self.requests: list[InferenceRequest] = []
        self._infer = infer or (lambda request: make_chunk(request, horizon))
        config.setdefault("hold_limit_s", 1e9)
        self.executor = RtcExecutor(
            self.spec, ExecutorConfig(**config), self._record, guard, now_ns=lambda: self.now_ns
        )
        pending = iter(delays)
        self.inference = SteppedInference(self.executor, lambda request: next(pending, then))
        self.k = -1
        self.trace: list[Command] = []

    @property
    def now_ns(self) -> int:
        return max(self.k, 0) * int(DT_S * 1e9)

    def _record(self, request: InferenceRequest) -> ActionChunk:
        self.requests.append(request)
        return self._infer(request)

    def tick(self, obs=OBS, fault=None, missed: int = 0) -> Command:
        self.k += 1 + missed
        self.inference.before_tick(self.k)
        command = self.executor.tick(self.k, self.now_ns, obs, fault, missed)
        self.inference.after_tick()
        self.trace.append(command)
        return command

    def run(self, ticks: int) -> list[Command]:
        return [self.tick() for _ in range(ticks)]
