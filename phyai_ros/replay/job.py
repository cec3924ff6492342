"""What `phyai-ros replay` does: open the bag, replay it as it is and as asked for, put the report together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phyai_ros.assembly import LoadedPolicy, load_policy
from phyai_ros.parameters import build_settings
from phyai_ros.replay.about import describe_bag, describe_replay
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.findings import Finding
from phyai_ros.replay.frames import FrameStrip
from phyai_ros.replay.output_bag import OutputBag
from phyai_ros.replay.params_file import read_params_file
from phyai_ros.replay.recorded_run import has_recorded_run, read_recorded_run
from phyai_ros.replay.recorded_settings import compare_settings
from phyai_ros.replay.replay_run import OnProgress, Replay, ReplayResult, check_data
from phyai_ros.replay.report import Report, make_report
from phyai_ros.replay.requirements import Requirement
from phyai_ros.replay.scenario import AUTO, RECORDED, USUAL_LATENCY_S, Scenario, with_file_delay
from phyai_ros.replay.topics import NodeName
from phyai_ros.settings import Settings


@dataclass(frozen=True)
class Job:
    """All options. `params` None: look at the data only. `scenario.latency` auto: as recorded, else 0.02 s."""

    bag: Path
    params: Path | None = None
    node: NodeName = field(default_factory=NodeName)
    renamed: Mapping[str, str] = field(default_factory=dict)
    clock: str = "log"
    scenario: Scenario = field(default_factory=Scenario)
    compare_topic: str = ""
    gripper_joints: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    output_bag: Path | None = None
    checkpoint: Path | None = None  # in place of the one in the parameter file


class Runner:
    """Runs one job. `log` hears what loading a policy says, `on_progress(done, total)` counts messages."""

    def __init__(self, job: Job, log: Callable[[str], None], on_progress: Callable[[int, int], None]) -> None:
        self._job, self._log, self._on_progress = job, log, on_progress
        self._values = read_params_file(job.params, job.node.full) if job.params is not None else {}
        if job.checkpoint is not None:
            self._values["inference.checkpoint"] = str(job.checkpoint)

    def run(self) -> Report:
        """Raises ValueError for whatever the user can mend."""
        with Bag(self._job.bag, self._job.renamed, self._job.clock) as bag:
            return self._check_data(bag) if self._job.params is None else self._replay(bag)

    def _check_data(self, bag: Bag) -> Report:
        quality = check_data(bag, self._counter(bag.count))
        title = f"Data of {self._job.bag.name}"
        return make_report(title, bag.duration_s, quality, self._job.requirements, [describe_bag(bag)])

    def _replay(self, bag: Bag) -> Report:
        base, changed = self._scenarios(bag)
        replay = self._make_replay(bag, self._load(base))
        replay.check(base)
        remarks = compare_settings(bag, self._job.node, self._with_file_delay(replay.policy.settings))
        progress = self._counter(bag.count * (1 if changed is None else 2))
        baseline = replay.run(base, progress) if changed is not None else None
        if changed is not None and changed.overrides:
            replay = self._make_replay(bag, self._load(changed))
        strip = FrameStrip(bag, replay.inputs.cameras)
        result = self._run(replay, changed or base, progress, strip)
        return self._report(replay, result, baseline, strip, remarks)

    def _report(
        self,
        replay: Replay,
        result: ReplayResult,
        baseline: ReplayResult | None,
        strip: FrameStrip,
        remarks: Sequence[Finding],
    ) -> Report:
        job, bag, policy = self._job, replay.bag, replay.policy
        return make_report(
            f"Replay of {job.bag.name}",
            bag.duration_s,
            result.quality,
            job.requirements,
            [describe_bag(bag), *describe_replay(policy, job.params, job.node, result.scenario, remarks)],
            result,
            baseline,
            policy.settings.limits,
            strip,
            remarks,
        )

    def _run(self, replay: Replay, scenario: Scenario, progress: OnProgress, strip: FrameStrip) -> ReplayResult:
        """The run that is judged; what it would publish goes into the output bag, where one is asked for."""
        if self._job.output_bag is None:
            return replay.run(scenario, progress, watch=strip.take)
        with OutputBag(self._job.output_bag, replay.policy.spec, self._job.node) as out:
            return replay.run(scenario, progress, on_message=out.write_output, listen=out.listen, watch=strip.take)

    def _scenarios(self, bag: Bag) -> tuple[Scenario, Scenario | None]:
        """As it is, and as asked for where that differs. A change on top of recorded latencies takes them as a trace:
        the ticks of the live run cannot be kept then."""
        given = self._job.scenario
        latency = given.latency
        if latency == AUTO:
            latency = RECORDED if has_recorded_run(bag, self._job.node) else USUAL_LATENCY_S
        settings = build_settings(self._values)
        base = Scenario(latency=latency, seed=given.seed)
        if latency != RECORDED:
            base = with_file_delay(base, settings)
        changed = replace(given, latency=latency)
        if changed == replace(base, inject_delay_s=given.inject_delay_s) and not given.inject_delay_s:
            return base, None
        if changed.recorded:
            changed = replace(changed, trace_s=tuple(read_recorded_run(bag, self._job.node).latencies_s()))
        return base, replace(changed, inject_delay_s=changed.inject_delay_s + base.inject_delay_s)

    def _load(self, scenario: Scenario) -> LoadedPolicy:
        values = {**self._values, **scenario.overrides}
        settings = build_settings(values)
        inference = settings.inference.model_copy(update={"inject_delay_s": 0.0})
        return load_policy(settings.model_copy(update={"inference": inference}), self._log)

    def _with_file_delay(self, settings: Settings) -> Settings:
        """As the live node would have them: `_load` takes the injected delay out."""
        delay_s = build_settings(self._values).inference.inject_delay_s
        inference = settings.inference.model_copy(update={"inject_delay_s": delay_s})
        return settings.model_copy(update={"inference": inference})

    def _make_replay(self, bag: Bag, policy: LoadedPolicy) -> Replay:
        return Replay(bag, policy, self._job.node, self._job.compare_topic, self._job.gripper_joints)

    def _counter(self, total: int) -> OnProgress:
        done = 0

        def count(messages: int) -> None:
            nonlocal done
            done += messages
            self._on_progress(done, total)

        return count
