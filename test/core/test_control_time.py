"""Guards against: points off their curve of the control-time roofline, and latency booked to the wrong stage.

Everything runs on one logical clock, through the executor, the inference of a policy and the timekeeper of the node.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.executor_rig import DT_S, make_spec
from core.fakes import LinearFlow
from core.fakes import make_spec as make_flow_spec
from phyai_core.engine import Engine
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference
from phyai_core.rtc import RtcConfig
from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import How, Roofline
from phyai_core.types import ActionChunk, Observation, Source

ROS_0 = 1_700_000_000_000_000_000
BASE_S = 0.0126  # what an inference takes without anything injected
TICK_NS = round(DT_S * 1e9)


class LogicalRun:
    """An executor whose inference takes `latency_s`, and the timekeeper of the node, tick by tick."""

    def __init__(self, latency_s: float, s_min: int, mode: str = "identity", horizon: int = 64) -> None:
        self.now_ns, self._latency_ns = 0, round(latency_s * 1e9)
        spec = make_spec(horizon)
        config = ExecutorConfig(mode=mode, execution_horizon=s_min, hold_limit_s=60.0, hang_after_s=60.0)
        self._executor = RtcExecutor(spec, config, self._infer, now_ns=lambda: self.now_ns)
        self.keeper = Timekeeper(spec, s_min)
        self._due = None

    def _infer(self, request) -> ActionChunk:
        rows = np.zeros((self._executor.spec.action_horizon, 2), np.float32)
        return ActionChunk(request.epoch, request.seq, request.base_tick, ROS_0, rows, rows, TICK_NS)

    def run(self, ticks: int) -> None:
        for k in range(ticks):
            self._finish_before(k * TICK_NS)
            self.now_ns = k * TICK_NS
            command = self._executor.tick(k, self.now_ns, obs=object())
            request = self._executor.take_request()
            if request is not None:
                self._due = (self.now_ns + self._latency_ns, request)
            if command.adopted:
                self.keeper.close(command, self._executor.counters, self.now_ns, ROS_0 + self.now_ns, 0.0)

    def _finish_before(self, tick_ns: int) -> None:
        if self._due is not None and self._due[0] <= tick_ns:
            self.now_ns, request = self._due
            self._executor.post(request, self._executor.compute(request))
            self._due = None


@pytest.mark.parametrize("s_min", [2, 8], ids=["short window", "long window"])
@pytest.mark.parametrize(
    ("mode", "delay_s"),
    [*[("identity", delay_s) for delay_s in (0.0, 0.1, 0.24, 0.5)], ("sync", 0.24), ("sync", 1.5)],
)
def test_points_lie_on_their_curve(mode, delay_s, s_min):
    run = LogicalRun(BASE_S + delay_s, s_min, mode)
    run.run(600)
    found = run.keeper.recent.summarise()
    assert found.l_inference_p50 == pytest.approx(BASE_S + delay_s)
    point = Roofline(found.l_env, found.l_inference_p50, found.l_control_p50)
    assert point.is_on_curve(mode != "sync", DT_S)
    assert found.bound == ("environment" if s_min * DT_S >= BASE_S + delay_s else "inference")


STAGES_S = {"observe": 0.012, "transfer": 0.003, "queue": 0.009, "decode": 0.001, "preprocess": 0.002}
STAGES_S |= {"prefix": 0.010, "denoise": 0.005, "postprocess": 0.001, "other": 0.0, "adopt": 0.004, "effect": 0.050}


class StageRig:
    """One chunk on a clock that moves only where a stage takes its time; `delays` {stage: extra seconds}."""

    def __init__(self, monkeypatch, **delays: float) -> None:
        self._seconds = {name: base + delays.get(name, 0.0) for name, base in STAGES_S.items()}
        self.now_ns = 5_000_000_000
        monkeypatch.setattr("time.perf_counter_ns", lambda: self.now_ns)
        self._policy = SlowFlow(self)
        engine = Engine(self._policy, torch.device("cpu"), use_graphs=False)
        self._spec = self._policy.spec
        infer = PolicyInference(engine, RtcConfig("none"), self._decode, 0, self._seconds["other"], sleep=self._move)
        self._executor = RtcExecutor(self._spec, ExecutorConfig(), infer, now_ns=lambda: self.now_ns)

    def spend(self, stage: str, parts: int = 1) -> None:
        self._move(self._seconds[stage] / parts)

    def _move(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def _decode(self, obs: Observation) -> Observation:
        self.spend("decode")
        return obs

    def time_one_chunk(self) -> dict[str, float]:
        source = self._receive()
        self.spend("queue")
        images = {"front": np.zeros((4, 6, 3), np.uint8)}
        obs = Observation(ROS_0, images, np.zeros(2, np.float32), np.zeros(2, np.float32), sources=(source,))
        self._executor.tick(0, self.now_ns, obs)
        self._executor.step_inference()
        self.spend("adopt")
        command = self._executor.tick(1, self.now_ns, None)
        keeper = Timekeeper(self._spec, 4)
        self._let_it_move(keeper)
        timing = keeper.close(command, self._executor.counters, self.now_ns, ROS_0, 0.0)
        return {name: getattr(timing, f"l_{name}") for name in STAGES_S}

    def _receive(self) -> Source:
        observe_ns, transfer_ns = (round(self._seconds[name] * 1e9) for name in ("observe", "transfer"))
        published_ns = ROS_0 + observe_ns
        return Source("front", ROS_0, self.now_ns, 0, published_ns + transfer_ns, published_ns)

    def _let_it_move(self, keeper: Timekeeper) -> None:
        """Three seconds of motion, followed by the joints with the lag under test."""
        for k in range(100):
            reached_ns = ROS_0 + (k + 1) * TICK_NS
            keeper.lag.note_command(reached_ns, np.sin(2.0 * (k + 1) * DT_S + np.arange(2)))
            keeper.lag.note_state(
                ROS_0 + k * TICK_NS, np.sin(2.0 * (k * DT_S - self._seconds["effect"]) + np.arange(2))
            )
        keeper.lag.update()


class SlowFlow(LinearFlow):
    """Each stage of the policy takes its time on the rig's clock."""

    def __init__(self, rig: StageRig) -> None:
        super().__init__(make_flow_spec(steps=5))
        self._spend = rig.spend

    def preprocess(self, obs):
        self._spend("preprocess")
        return super().preprocess(obs)

    def encode_prefix(self, inputs):
        self._spend("prefix")
        return super().encode_prefix(inputs)

    def denoise_step(self, prefix, latents, flow_time):
        self._spend("denoise", parts=5)
        return super().denoise_step(prefix, latents, flow_time)

    def postprocess(self, latents, obs):
        self._spend("postprocess")
        return super().postprocess(latents, obs)


@pytest.mark.parametrize("delayed", ["", *STAGES_S])
def test_a_delay_appears_in_its_stage_and_in_no_other(delayed, monkeypatch):
    extra_s = 0.030
    terms = StageRig(monkeypatch, **({delayed: extra_s} if delayed else {})).time_one_chunk()
    for name, base_s in STAGES_S.items():
        expected_s = base_s + (extra_s if name == delayed else 0.0)
        assert terms[name].how is How.MEASURED, name
        assert terms[name].seconds == pytest.approx(expected_s, abs=0.002 + 0.02 * expected_s), name
