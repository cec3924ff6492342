"""What `phyai-ros replay` does: open the bag, replay it as it is and as asked for, put the report together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phyai_ros.assembly import LoadedPolicy, load_policy
from phyai_ros.camera_view import CameraView
from phyai_ros.parameters import build_settings
from phyai_ros.replay.bag import Bag
from phyai_ros.replay.figures import plain
from phyai_ros.replay.frames import FrameStrip
from phyai_ros.replay.output_bag import OutputBag
from phyai_ros.replay.params_file import read_params_file
from phyai_ros.replay.recorded_run import has_recorded_run, read_recorded_run
from phyai_ros.replay.replay_run import OnProgress, Replay, ReplayResult, check_data
from phyai_ros.replay.report import Report, make_report
from phyai_ros.replay.report_page import write_page
from phyai_ros.replay.requirements import Requirement
from phyai_ros.replay.scenario import AUTO, RECORDED, USUAL_LATENCY_S, Scenario, with_file_delay
from phyai_ros.replay.topics import NodeName


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
        return make_report(self._title, bag.duration_s, quality, self._job.requirements, self._about(bag))

    def _replay(self, bag: Bag) -> Report:
        base, changed = self._scenarios(bag)
        policy = self._load(base)
        runs = 1 + (changed is not None)
        progress = self._counter(bag.count * runs)
        with ExitStack() as open_files:
            replay = self._make_replay(bag, policy)
            replay.check(base)
            strip = FrameStrip(bag, replay.inputs.cameras)
            baseline = None
            if changed is not None:
                baseline = replay.run(base, progress)
                policy = self._load(changed) if changed.overrides else policy
                replay = self._make_replay(bag, policy)
            options: dict[str, Any] = {"watch": strip.take}
            if self._job.output_bag is not None:
                out = open_files.enter_context(self._open_output(policy))
                options |= {"on_message": out.write_output, "listen": out.listen}
            result = replay.run(changed or base, progress, **options)
        return self._report(bag, policy, result, baseline, strip)

    def _report(
        self, bag: Bag, policy: LoadedPolicy, result: ReplayResult, baseline: ReplayResult | None, strip: FrameStrip
    ) -> Report:
        return make_report(
            self._title,
            bag.duration_s,
            result.quality,
            self._job.requirements,
            self._about(bag, policy, result),
            result,
            baseline,
            policy.settings.limits,
            strip,
        )

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

    def _make_replay(self, bag: Bag, policy: LoadedPolicy) -> Replay:
        return Replay(bag, policy, self._job.node, self._job.compare_topic, self._job.gripper_joints)

    def _open_output(self, policy: LoadedPolicy) -> OutputBag:
        return OutputBag(self._job.output_bag, policy.spec, self._job.node)

    def _counter(self, total: int) -> OnProgress:
        done = 0

        def count(messages: int) -> None:
            nonlocal done
            done += messages
            self._on_progress(done, total)

        return count

    @property
    def _title(self) -> str:
        return f"Replay of {self._job.bag.name}" if self._job.params is not None else f"Data of {self._job.bag.name}"

    def _about(
        self, bag: Bag, policy: LoadedPolicy | None = None, result: ReplayResult | None = None
    ) -> tuple[str, ...]:
        lines = [f"bag: {self._job.bag.name}, {bag.count} messages in {bag.duration_s:.3f} s"]
        if policy is not None:
            settings = policy.settings
            weights = Path(settings.inference.checkpoint).name or "shipped weights"
            mode = f"mode {settings.rtc.mode}, execution horizon {settings.rtc.execution_horizon} ticks"
            lines.append(f"policy: {policy.spec.name} ({weights}) on {settings.inference.device}, {mode}")
            lines.append(f"parameters: {self._job.params.name}, node {self._job.node.full}")
            lines += [
                f"camera {camera.key}: {CameraView(settings.cameras.by_key[camera.key], camera).describe()}"
                for camera in policy.spec.cameras
            ]
            lines.append(f"scenario: {result.scenario.describe()}, noise seed {settings.inference.seed}")
            again = "the same bytes" if result.scenario.repeatable else "other figures: latencies were measured here"
            lines.append(f"A second replay gives {again}.")
        return tuple(lines)


def write_files(report: Report, folder: Path) -> list[Path]:
    """Everything about a replay into `folder`; returns the paths. timings.jsonl alone holds wall times."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "report.json", folder / "report.html"]
    report.write_json(paths[0])
    write_page(report, paths[1])
    if report.result is not None:
        paths += [folder / "actions.csv", folder / "timings.jsonl"]
        report.result.log.write(paths[2])
        paths[3].write_text("".join(json.dumps(line) + "\n" for line in _timing_lines(report.result)))
    return paths


def _timing_lines(result: ReplayResult) -> Sequence[dict[str, Any]]:
    return [
        plain(
            {
                "seq": inference.request.seq,
                "tick": inference.request.base_tick,
                "l_inference": inference.measured_s,
                "logical": inference.latency_s,
                **{f"l_{name}": seconds for name, seconds in inference.stages_s.items()},
            }
        )
        for inference in result.inferences
    ]
