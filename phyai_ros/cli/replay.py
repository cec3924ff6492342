"""`phyai-ros replay`: what the policy node would have done with a bag; without a policy, what the bag is worth."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from phyai_ros.cli import replay_options as options
from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed

if TYPE_CHECKING:
    from phyai_ros.replay.job import Job
    from phyai_ros.replay.report import Report
    from phyai_ros.replay.requirements import Requirement
    from phyai_ros.replay.scenario import Scenario

NEED_POLICY = {  # option, and what it is where it was not given
    **dict.fromkeys(("checkpoint", "gripper", "write", "latency_trace", "drop_camera", "param")),
    **dict.fromkeys(("compare", "mode", "device"), ""),
    **dict.fromkeys(("inject_delay", "jitter"), 0.0),
    "latency": "auto",
    "seed": 0,
}


def replay(
    bag: options.BagFile,
    params: options.Params = None,
    checkpoint: options.Checkpoint = None,
    latency: options.Latency = "auto",
    compare: options.Compare = "",
    gripper: options.Gripper = None,
    out: options.Out = None,
    json_file: options.JsonFile = None,
    write: options.Write = None,
    require: options.Require = None,
    inject_delay: options.InjectDelay = 0.0,
    latency_trace: options.LatencyTrace = None,
    jitter: options.Jitter = 0.0,
    drop_camera: options.DropCamera = None,
    mode: options.Mode = "",
    device: options.Device = "",
    param: options.Param = None,
    seed: options.Seed = 0,
    remap: options.Remap = None,
    node: options.Node = "policy",
    namespace: options.Namespace = "/",
    clock: options.Clock = "log",
) -> None:
    """Check a bag, and replay it through the code of the policy node, without a robot and without ROS."""
    given = SimpleNamespace(**locals())
    from phyai_ros.replay.message_packages import provide_message_packages

    provide_message_packages()
    console = make_console()
    report = _run(_make_job(given), console)
    _show(report, console)
    _write_files(report, given, console)
    if not report.passed:
        raise CommandFailed("; ".join(str(outcome) for outcome in report.outcomes if not outcome.met))


def _make_job(given: SimpleNamespace) -> Job:
    """From the options as they were given. Raises ValueError naming the one that is wrong."""
    from phyai_ros.replay.job import Job
    from phyai_ros.replay.topics import NodeName

    _check_needs_policy(given)
    return Job(
        bag=given.bag,
        params=given.params,
        node=NodeName(given.node, given.namespace),
        renamed=_pairs("--remap", given.remap, ":="),
        clock=given.clock,
        scenario=_make_scenario(given),
        compare_topic=given.compare,
        gripper_joints=tuple(given.gripper or ()),
        requirements=_requirements(given.require),
        output_bag=given.write,
        checkpoint=given.checkpoint,
    )


def _make_scenario(given: SimpleNamespace) -> Scenario:
    from phyai_ros.replay.scenario import Scenario

    changes = {"rtc.mode": given.mode, "inference.device": given.device}
    overrides = {**_pairs("--param", given.param, ":="), **{name: value for name, value in changes.items() if value}}
    return Scenario(
        latency="measured" if given.device and given.latency == "auto" else given.latency,
        latency_trace=given.latency_trace,
        inject_delay_s=given.inject_delay,
        jitter_s=given.jitter,
        drop_camera={key: _share(key, text) for key, text in _pairs("--drop-camera", given.drop_camera, ":").items()},
        overrides={name: yaml.safe_load(value) for name, value in overrides.items()},
        seed=given.seed,
    )


def _write_files(report: Report, given: SimpleNamespace, console: Console) -> None:
    from phyai_ros.replay.result_files import write_files

    if given.write is not None:
        tell_written(console, given.write)
    if given.json_file is not None:
        report.write_json(given.json_file)
        tell_written(console, given.json_file)
    for path in write_files(report, given.out) if given.out is not None else []:
        tell_written(console, path)


def _run(job: Job, console: Console) -> Report:
    from phyai_ros.replay.job import Runner

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("replay" if job.params else "data", total=None)
        started_s = time.monotonic()
        runner = Runner(job, log=lambda line: None, on_progress=_Bar(progress, bar).show)
        report = runner.run()
        wall_s = time.monotonic() - started_s
    console.print(f"{report.duration_s:.1f} s of bag in {wall_s:.1f} s", highlight=False)
    return report


class _Bar:
    """Moves a progress bar a hundred times at most: messages are many."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self._task, self._shown = progress, task, -1

    def show(self, done: int, total: int) -> None:
        percent = 100 * done // max(1, total)
        if percent != self._shown:
            self._shown = percent
            self._progress.update(self._task, completed=done, total=total)


def _show(report: Report, console: Console) -> None:
    from phyai_ros.replay.report_text import print_report

    print_report(report, console)


def _requirements(texts: list[str] | None) -> tuple[Requirement, ...]:
    from phyai_ros.replay.requirements import parse_requirement

    return tuple(parse_requirement(text) for text in texts or ())


def _pairs(option: str, texts: list[str] | None, sign: str) -> dict[str, str]:
    """["a:=b"] -> {"a": "b"}."""
    pairs = {}
    for text in texts or ():
        left, found, right = text.partition(sign)
        if not (left and found and right):
            raise ValueError(f"{option} is {text!r}; allowed is two parts with {sign} in between.")
        pairs[left] = right
    return pairs


def _share(key: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"--drop-camera {key} is {text!r}; allowed is a share from 0 to 1.")
    return share


def _check_needs_policy(given: SimpleNamespace) -> None:
    """Options that mean nothing without a policy are refused rather than ignored."""
    values = vars(given)
    idle = [option for option, absent in NEED_POLICY.items() if (values[option] or absent) != absent]
    if given.params is None and idle:
        names = ", ".join("--" + option.replace("_", "-") for option in idle)
        raise ValueError(f"{names}: only with a policy; give its parameter file with --params.")
