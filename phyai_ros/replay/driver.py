"""Recorded messages through the node's own code: inputs, executor, safety and output, on a clock that the bag moves.

Between two messages everything that falls due happens in its order: control ticks and finished inferences. Nothing
here reads a wall clock but the figures of `Inference`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from phyai_core.timekeeping import Timekeeper
from phyai_core.timing import ChunkTiming
from phyai_core.types import Action, Command, Reason
from phyai_ros.assembly import LoadedPolicy, build_executor, build_motion, make_output
from phyai_ros.joints import robot_joint_names
from phyai_ros.mailbox import Mailbox
from phyai_ros.motion_guard import MotionGuard
from phyai_ros.pipeline import Pipeline
from phyai_ros.replay.action_log import ActionLog, ChunkLine, TickLine
from phyai_ros.replay.bag import BagMessage
from phyai_ros.replay.clockwork import (
    NS_PER_S,
    Inference,
    LogicalClock,
    LogicalInference,
    UniformTicks,
    without_inputs,
)
from phyai_ros.replay.follower import Follower
from phyai_ros.replay.latency import Latency
from phyai_ros.replay.topics import InputTopics
from phyai_ros.settings import Settings, Tracking
from phyai_ros.supervision import Rules
from phyai_ros.tick_trace import TracedTick

REST_LIMIT_S = 5.0  # after the last message, so long at most until the robot rests

OnMessage = Callable[[int, str, Any], None]


class Driver:
    """One replay of one policy. Give it messages in order with `run`; the results are `log` and `inferences`.

    `latency` is logical, as is `first_latency_s`, which makes the first delay forecast. `on_message(stamp_ns, topic,
    message)` hears what the output sends. `unheard`: the reasons of switches (DISABLED, ESTOP) that are not in the bag;
    ~/enable counts as given then. `ticks` are those of the live run; left out: from the start of the bag on.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        inputs: InputTopics,
        start_ns: int,
        latency: Latency,
        first_latency_s: float,
        on_message: OnMessage = lambda stamp_ns, topic, message: None,
        unheard: Collection[Reason] = (),
        ticks: UniformTicks | None = None,
    ) -> None:
        settings = _fit_for_replay(policy.settings, follows=ticks is not None)
        policy = replace(policy, settings=settings, latency_s=first_latency_s)
        spec, motion = policy.spec, build_motion(policy)
        names = robot_joint_names(settings.joints, spec)
        self.clock = LogicalClock(start_ns)
        self.log = ActionLog(names, tuple(feature.unit for feature in spec.action), spec.dt_s, start_ns)
        self.inferences: list[Inference] = []
        self.executor = build_executor(policy, self.clock.now_ns, motion)
        self.mailbox = Mailbox(settings, spec, self.clock.now_ns, steady_now_ns=self.clock.now_ns)
        self._inference = LogicalInference(self.executor, self.clock, latency, self.inferences.append)
        self._output = make_output(policy, lambda topic, message: on_message(self.clock.ns, topic, message))
        rules = _make_rules(settings, enabled=Reason.DISABLED in unheard)
        self.pipeline = self._make_pipeline(Timekeeper(spec, settings.rtc.execution_horizon), motion, rules)
        self._receivers = self._connect(inputs)
        self.on_command: Callable[[Command, int], None] = lambda command, stamp_ns: None
        self.on_chunk: Callable[[Command, ChunkTiming, int], None] = lambda command, timing, stamp_ns: None
        self._ran: Command | None = None  # the command whose row the output took in this tick
        self.ticks = ticks or UniformTicks(start_ns, round(spec.dt_s * NS_PER_S))
        self._tick, self._before, self._sub = self.ticks.first(), -1, 0
        self._follower = Follower(self.pipeline, self.executor, self.mailbox, self.clock, unheard)
        self.pipeline.begin()

    def _make_pipeline(self, timekeeper: Timekeeper, motion: MotionGuard, rules: Rules) -> Pipeline:
        return Pipeline(
            self.executor,
            self.mailbox,
            self._output,
            timekeeper,
            ros_now_ns=self.clock.now_ns,
            on_command=self._note_command,
            on_chunk=self._note_chunk,
            steady_now_ns=self.clock.now_ns,
            motion=motion,
            rules=rules,
        )

    def _connect(self, inputs: InputTopics) -> dict[str, Callable[[Any], None]]:
        receivers: dict[str, Callable[[Any], None]] = {
            topic: lambda msg, key=key: self.mailbox.receive_image(key, msg) for key, topic in inputs.cameras.items()
        }
        for key, topic in inputs.clouds.items():
            receivers[topic] = partial(self.mailbox.receive_cloud, key)
        receivers[inputs.joints] = self.mailbox.receive_joints
        receivers[inputs.prompt] = lambda msg: setattr(self.mailbox, "prompt", msg.data)
        receivers[inputs.enable] = lambda msg: self.pipeline.enable(bool(msg.data))
        if inputs.estop:
            receivers[inputs.estop] = lambda msg: self.pipeline.press_estop(bool(msg.data))
        return receivers

    def run(self, messages: Iterable[BagMessage]) -> None:
        """Replay `messages` to their end and until the robot rests. Others than the inputs only move the clock."""
        for message in messages:
            self.deliver(message)
        self.finish()

    def deliver(self, message: BagMessage) -> None:
        """What falls due before this message, then the message."""
        self.advance(message.log_ns)
        self.clock.ns = max(self.clock.ns, message.log_ns)
        receive = self._receivers.get(message.topic)
        if receive is not None:
            receive(message.msg)

    def finish(self) -> None:
        """Deactivate as the node does: brake, and tick on until the robot rests."""
        self.pipeline.close()
        last_ns = self.clock.ns + round(REST_LIMIT_S * NS_PER_S)
        while not self.pipeline.rested.is_set() and self.clock.ns < last_ns:
            self.advance(self._next_tick_ns() + 1)
        self._output.close()

    def advance(self, until_ns: int) -> None:
        """Every tick and every result before `until_ns`; of two at the same time the result comes first."""
        while (due_ns := self._next_due_ns()) < until_ns:
            self.clock.ns = max(self.clock.ns, due_ns)
            if due_ns == self._inference.due_ns:
                self._inference.post()
            else:
                self._run_tick()

    def _next_due_ns(self) -> int:
        result_ns = self._inference.due_ns
        return self._next_tick_ns() if result_ns is None else min(result_ns, self._next_tick_ns())

    def _next_tick_ns(self) -> int:
        """When the next tick, or publication between two ticks, runs."""
        return self._sub_stamp_ns() if self._sub else self._tick.ran_ns

    def _sub_stamp_ns(self) -> int:
        return self._tick.deadline_ns + self._sub * self.ticks.period_ns // self._output.sub_ticks

    def _run_tick(self) -> None:
        if self._sub == 0:
            self._tick_pipeline(self._tick)
        else:
            self.pipeline.sub_tick(self._sub / self._output.sub_ticks, self._sub_stamp_ns())
        self._sub += 1
        if self._sub > min(self._tick.sub_ticks, self._output.sub_ticks - 1):
            self._tick, self._sub = self.ticks.after(self._tick), 0

    def _tick_pipeline(self, tick: TracedTick) -> None:
        self._ran = None
        self._follower.prepare(tick)
        missed = max(0, tick.tick - self._before - 1) if self._before >= 0 else 0
        self._before = tick.tick
        self.pipeline.tick(tick.tick, missed, tick.deadline_ns, tick.late_ns / NS_PER_S)
        self._inference.launch()
        self._note_tick(tick.deadline_ns)

    def _note_command(self, command: Command, stamp_ns: int) -> None:
        self._ran = command
        self.on_command(command, stamp_ns)

    def _note_chunk(self, command: Command, timing: ChunkTiming, stamp_ns: int) -> None:
        request = without_inputs(command.adoption.request)
        kept = replace(command, adoption=replace(command.adoption, request=request))
        self.log.chunks.append(ChunkLine(kept, stamp_ns, timing))
        self.on_chunk(command, timing, stamp_ns)

    def _note_tick(self, stamp_ns: int) -> None:
        command = self.pipeline.record.command
        runs = self._ran is not None
        refused = command.action is Action.RUN and not runs  # by the output; the next tick says why
        self.log.ticks.append(
            TickLine(
                command.tick,
                stamp_ns,
                Action.HOLD if refused else command.action,
                command.reason,
                command.text,
                command.epoch,
                command.chunk.seq if runs else -1,
                command.index if runs else -1,
                command.row if runs else None,
            )
        )


def _fit_for_replay(settings: Settings, follows: bool) -> Settings:
    """An injected delay is part of the logical latency here, and noise that is new at each start is fixed.

    Unless the robot in the bag `follows` our commands it does something else, and is not checked for following them.
    """
    inference = settings.inference.model_copy(update={"inject_delay_s": 0.0, "seed": max(0, settings.inference.seed)})
    changes: dict[str, Any] = {"inference": inference}
    return settings.model_copy(update=changes if follows else changes | {"tracking": Tracking()})


def _make_rules(settings: Settings, enabled: bool) -> Rules:
    """As in the node; goals of an action are not in a bag, so they count as given."""
    silent = settings.stop.estop_stop == "silence"
    return Rules(settings.require_enable and not enabled, settings.stop.enable_timeout_s, silent)
