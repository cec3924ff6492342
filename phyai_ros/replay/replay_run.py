"""One pass over a bag: data quality always, and with a policy what the robot would have done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from phyai_core.execution import Counters
from phyai_core.types import Reason
from phyai_ros.assembly import LoadedPolicy
from phyai_ros.joints import JointMap
from phyai_ros.motion_guard import LimitReport
from phyai_ros.replay.action_log import ActionLog
from phyai_ros.replay.bag import Bag, BagMessage
from phyai_ros.replay.clockwork import Inference
from phyai_ros.replay.comparison import Comparison, compare
from phyai_ros.replay.driver import Driver, OnMessage
from phyai_ros.replay.parity import Parity, check_parity
from phyai_ros.replay.quality import QualityCheck, QualityReport
from phyai_ros.replay.recorded_order import RecordedOrder
from phyai_ros.replay.recorded_run import COMMAND, RecordedRun, has_recorded_run, read_recorded_run
from phyai_ros.replay.recorded_ticks import RecordedTicks, recorded_latency
from phyai_ros.replay.reference import ReferenceReader, ReferenceTopic, Track, check_reference, find_reference
from phyai_ros.replay.scenario import Scenario
from phyai_ros.replay.topics import InputTopics, NodeName, check_inputs, find_inputs

OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class ReplayResult:
    """What one replay gave. `parity` is set where the live run was in the bag and was replayed with its latencies.

    `limited` says what the node's limits changed about the chunks.
    """

    scenario: Scenario
    quality: QualityReport
    log: ActionLog
    inferences: tuple[Inference, ...]
    counters: Counters
    limited: LimitReport
    track: Track | None
    comparison: Comparison | None
    parity: Parity | None


def check_data(bag: Bag, on_progress: OnProgress = lambda count: None) -> QualityReport:
    """Data quality alone."""
    check = QualityCheck(bag)
    for message in _counted(bag.messages(), on_progress):
        check.take(message)
    return check.report()


def _counted(messages: Iterable[BagMessage], on_progress: OnProgress) -> Iterator[BagMessage]:
    for message in messages:
        yield message
        on_progress(1)


@dataclass(frozen=True)
class Replay:
    """What several replays of one bag have in common. `compare_topic` empty: the best that the bag has.

    `gripper_joints` empty: those with gripper in their name.
    """

    bag: Bag
    policy: LoadedPolicy
    node: NodeName
    compare_topic: str = ""
    gripper_joints: tuple[str, ...] = ()

    @property
    def inputs(self) -> InputTopics:
        return find_inputs(self.policy.settings, self.policy.spec, self.node)

    def check(self, scenario: Scenario) -> None:
        """Raises ValueError where the bag cannot feed the policy, or an option names what is not there."""
        check_inputs(self.bag, self.inputs, self.policy.settings)
        scenario.check_cameras(self.inputs)
        if self.compare_topic:
            check_reference(self.bag, self.compare_topic)

    def run(
        self,
        scenario: Scenario,
        on_progress: OnProgress = lambda count: None,
        on_message: OnMessage = lambda stamp_ns, topic, message: None,
        listen: Callable[[Driver], None] = lambda driver: None,
        watch: Callable[[BagMessage], None] = lambda message: None,
    ) -> ReplayResult:
        """Replay the whole bag once. `listen` gets the driver before it starts, `watch` every message that comes in."""
        self.check(scenario)
        recorded = read_recorded_run(self.bag, self.node) if scenario.recorded else None
        driver = self._make_driver(scenario, recorded, on_message)
        listen(driver)
        quality, reader = self._make_quality(), self._make_reader(driver.log)
        for message in self._arrange(scenario, recorded, driver, _counted(self.bag.messages(), on_progress), quality):
            if reader is not None:
                reader.take(message)
            watch(message)
            driver.deliver(message)
        driver.finish()
        track = reader.track() if reader is not None else None
        return ReplayResult(
            scenario,
            quality.report(),
            driver.log,
            tuple(driver.inferences),
            driver.executor.counters,
            driver.pipeline.motion.report,
            track,
            compare(driver.log, track, self.gripper_joints) if track is not None else None,
            check_parity(driver.log, recorded) if recorded is not None else None,
        )

    def _make_driver(self, scenario: Scenario, recorded: RecordedRun | None, on_message: OnMessage) -> Driver:
        switches = {Reason.DISABLED: self.inputs.enable, Reason.ESTOP: self.inputs.estop}
        unheard = [reason for reason, topic in switches.items() if not self.bag.holds(topic)]
        common: dict[str, Any] = {"on_message": on_message, "unheard": unheard}
        if recorded is not None:
            ticks = RecordedTicks(recorded, self.bag.start_ns)
            latency, first_s = recorded_latency(recorded, ticks), recorded.first_latency_s
            common["ticks"] = ticks
        else:
            latency, first_s = scenario.make_latency(self.policy.latency_s)
        return Driver(self.policy, self.inputs, self.bag.start_ns, latency, first_s, **common)

    def _arrange(
        self,
        scenario: Scenario,
        recorded: RecordedRun | None,
        driver: Driver,
        messages: Iterable[BagMessage],
        quality: QualityCheck,
    ) -> Iterator[BagMessage]:
        """Quality sees the bag as it is; losses and the order of the live node come after."""
        messages = scenario.drop(_taken(messages, quality), self.inputs)
        if recorded is None:
            return messages
        return RecordedOrder(recorded, driver.ticks, self.inputs).arrange(messages)

    def _make_quality(self) -> QualityCheck:
        settings, inputs = self.policy.settings, self.inputs
        joints = {inputs.joints: JointMap(self.policy.spec, settings.joints).required}
        return QualityCheck(self.bag, inputs.needed, joints, settings.inputs.slop_s)

    def _make_reader(self, log: ActionLog) -> ReferenceReader | None:
        topic = self._find_reference()
        controller_names = self.policy.settings.output.joints or log.names
        return None if topic is None else ReferenceReader(topic, log.names, controller_names)

    def _find_reference(self) -> ReferenceTopic | None:
        """The node's own commands; else what went to the controller; else where the joints went."""
        dt_s, own = self.policy.spec.dt_s, self.node.resolve(COMMAND)
        if self.compare_topic:
            return ReferenceTopic(self.compare_topic, 0.0 if self.compare_topic == own else dt_s)
        candidates = [ReferenceTopic(own, 0.0)] if has_recorded_run(self.bag, self.node) else []
        output = self.policy.settings.output.topic
        candidates += [ReferenceTopic(self.node.resolve(output), dt_s)] if output else []
        return find_reference(self.bag, [*candidates, ReferenceTopic(self.inputs.joints, dt_s)])


def _taken(messages: Iterable[BagMessage], quality: QualityCheck) -> Iterator[BagMessage]:
    for message in messages:
        quality.take(message)
        yield message
