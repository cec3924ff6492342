"""One measurement of `phyai-ros bench tick`: control loop and executor of the live node, and the built-in policy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from phyai_adapters import load_adapter
from phyai_core.clock import SteadyClock
from phyai_core.engine import Engine, blank_observation
from phyai_core.execution import ExecutorConfig
from phyai_core.executor import RtcExecutor
from phyai_core.inference import PolicyInference
from phyai_core.rtc import RtcConfig
from phyai_core.types import Command
from phyai_ros.control_loop import ControlLoop
from phyai_ros.inference_thread import InferenceThread
from phyai_ros.realtime import RealtimeScope
from phyai_ros.settings import Realtime

WARM_UP_S = 1.0
EXECUTION_HORIZON = 8

Publish = Callable[[Command, int], None]


@dataclass(frozen=True)
class TickFigures:
    """Tick error is wake-up minus deadline; a missed tick is one that was skipped because a whole period was gone."""

    rate_hz: float
    ticks: int
    missed_ticks: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    chunks: int
    inference_p50_ms: float | None


def load_engine(checkpoint: Path | None) -> Engine:
    """The built-in policy on one CPU thread, warm."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    engine = Engine(load_adapter("flow_tiny", checkpoint, device), device)
    engine.warm_up()
    return engine


def run_trial(
    engine: Engine, rate_hz: float, seconds: float, priority: int, publish: Publish | None
) -> tuple[TickFigures, list[str]]:
    """Tick at `rate_hz` for `seconds` after a second of warm-up. Also gives what the system refused, in sentences."""
    spec = replace(engine.spec, dt_s=1.0 / rate_hz)
    infer = PolicyInference(engine, RtcConfig(mode="identity"), decode=lambda obs: obs)
    executor = RtcExecutor(spec, ExecutorConfig(mode="identity", execution_horizon=EXECUTION_HORIZON), infer)
    log = TickLog(executor, blank_observation(spec), publish)
    realtime = RealtimeScope(Realtime(priority=priority))
    loop = ControlLoop(
        spec.dt_s, log.tick, SteadyClock(), on_error=log.errors.append, prepare=realtime.enter_control_thread
    )
    inference = InferenceThread(executor)
    try:
        inference.start()
        loop.start()
        threading.Event().wait(WARM_UP_S + seconds)
    finally:
        loop.stop()
        inference.stop()
        realtime.close()
    if log.errors:
        raise log.errors[0]
    return log.figures(rate_hz, warm_up_ticks=round(WARM_UP_S * rate_hz)), list(realtime.warnings.values())


@dataclass
class TickLog:
    """Ticks the executor and writes down how late each tick was. Runs in the control thread."""

    executor: RtcExecutor
    obs: object
    publish: Publish | None
    ticks: list[tuple[int, int]] = field(default_factory=list)  # missed before it, error in ns
    inference_s: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def tick(self, k: int, missed: int, deadline_ns: int, wake_ns: int) -> None:
        self.ticks.append((missed, wake_ns - deadline_ns))
        command = self.executor.tick(k, wake_ns, self.obs)
        if command.adopted:
            self.inference_s.append(sum(command.chunk.stages_s.values()))
        if command.row is not None and self.publish is not None:
            self.publish(command, deadline_ns)

    def figures(self, rate_hz: float, warm_up_ticks: int) -> TickFigures:
        ticks = self.ticks[warm_up_ticks:]
        errors_ms = [error_ns * 1e-6 for _, error_ns in ticks]
        p50, p99, largest = (round(float(value), 4) for value in np.percentile(errors_ms, (50, 99, 100)))
        missed = sum(missed for missed, _ in ticks)
        inference_ms = round(1e3 * float(np.median(self.inference_s)), 3) if self.inference_s else None
        return TickFigures(rate_hz, len(ticks), missed, p50, p99, largest, self.executor.counters.chunks, inference_ms)


@contextmanager
def publisher(joints: int) -> Iterator[Publish | None]:
    """Publishes each row as a JointState, as the node does; None where rclpy is not installed."""
    if find_spec("rclpy") is None:
        yield None
        return
    import rclpy
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions
    from sensor_msgs.msg import JointState

    from phyai_ros.messages import to_command_message

    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node("bench_tick", context=context)
    topic = node.create_publisher(JointState, "~/command", 10)
    names = [f"joint_{i}" for i in range(joints)]
    try:
        yield lambda command, stamp_ns: topic.publish(to_command_message(command.row, names, stamp_ns))
    finally:
        node.destroy_node()
        context.try_shutdown()
