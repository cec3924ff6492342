"""`phyai-ros replay`: what the policy node would have done with a bag; without a policy, what the bag is worth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from phyai_ros.cli.errors import CommandFailed

if TYPE_CHECKING:
    from phyai_ros.replay.report import Report
    from phyai_ros.replay.requirements import Requirement

MANY = "; repeat it"


def replay(
    bag: Annotated[Path, typer.Argument(help="rosbag2 folder, or an .mcap or .db3 file")],
    params: Annotated[
        Path | None, typer.Option(help="Parameter file of the policy node; without one only the data are checked")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint in place of inference.checkpoint of the parameter file")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for actions.csv, report.html, report.json and timings.jsonl")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write chunks, control times and commands as a bag (.mcap, or a folder)")
    ] = None,
    compare: Annotated[
        str, typer.Option(help="Topic that the commands are compared with; by default recorded commands, else joints")
    ] = "",
    require: Annotated[
        list[str] | None, typer.Option(help=f"Exit with 1 unless this holds, e.g. open_loop.ratio<1{MANY}")
    ] = None,
    latency: Annotated[
        str, typer.Option(help="Of each inference: seconds, recorded, or measured; auto: recorded, else 0.02")
    ] = "auto",
    inject_delay: Annotated[float, typer.Option(help="What if: inference takes so much longer, s")] = 0.0,
    latency_trace: Annotated[
        Path | None, typer.Option(help="What if: latencies of a bag with ControlTiming, or of a timings.jsonl")
    ] = None,
    jitter: Annotated[float, typer.Option(help="What if: latencies scatter upwards by this deviation, s")] = 0.0,
    drop_camera: Annotated[
        list[str] | None, typer.Option(help=f"What if: a camera loses pictures, as key:share, front:0.1{MANY}")
    ] = None,
    mode: Annotated[str, typer.Option(help="What if: rtc.mode")] = "",
    device: Annotated[str, typer.Option(help="What if: inference.device, with latencies measured on it")] = "",
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help=f"What if: a parameter as name:=value{MANY}")
    ] = None,
    remap: Annotated[list[str] | None, typer.Option(help=f"Read a topic under another name, OLD:=NEW{MANY}")] = None,
    node: Annotated[str, typer.Option(help="Name of the policy node")] = "policy",
    namespace: Annotated[str, typer.Option(help="Namespace of the policy node")] = "/",
    clock: Annotated[
        str, typer.Option(help="What ROS time was: log times, or header stamps (bags of simulated time)")
    ] = "log",
    gripper: Annotated[
        list[str] | None, typer.Option(help=f"A joint whose openings are compared; by default those named so{MANY}")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of jitter and lost pictures")] = 0,
) -> None:
    """Check a bag, and replay it through the code of the policy node, without a robot and without ROS."""
    from phyai_ros.replay.message_packages import provide_message_packages

    provide_message_packages()
    from phyai_ros.replay.job import Job
    from phyai_ros.replay.result_files import write_files
    from phyai_ros.replay.scenario import Scenario
    from phyai_ros.replay.topics import NodeName

    overrides = {**_pairs("--param", param, ":="), **{k: v for k, v in _changes(mode, device).items() if v}}
    scenario = Scenario(
        latency="measured" if device and latency == "auto" else latency,
        latency_trace=latency_trace,
        inject_delay_s=inject_delay,
        jitter_s=jitter,
        drop_camera={key: _share(key, text) for key, text in _pairs("--drop-camera", drop_camera, ":").items()},
        overrides={name: yaml.safe_load(value) for name, value in overrides.items()},
        seed=seed,
    )
    job = Job(
        bag=bag,
        params=params,
        node=NodeName(node, namespace),
        renamed=_pairs("--remap", remap, ":="),
        clock=clock,
        scenario=scenario,
        compare_topic=compare,
        gripper_joints=tuple(gripper or ()),
        requirements=_requirements(require),
        output_bag=write,
        checkpoint=checkpoint,
    )
    _check_needs_policy(job)
    console = Console()
    report = _run(job, console)
    _show(report, console)
    if json_file is not None:
        report.write_json(json_file)
    for path in write_files(report, out) if out is not None else []:
        console.print(f"wrote {path}", markup=False, highlight=False)
    if not report.passed:
        raise CommandFailed("; ".join(str(outcome) for outcome in report.outcomes if not outcome.met))


def _run(job: Any, console: Console) -> Report:
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


def _changes(mode: str, device: str) -> dict[str, str]:
    return {"rtc.mode": mode, "inference.device": device}


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


def _check_needs_policy(job: Any) -> None:
    """Options that mean nothing without a policy are refused rather than ignored."""
    from phyai_ros.replay.scenario import Scenario

    plain = Scenario(latency=job.scenario.latency, seed=job.scenario.seed)
    if job.params is None and (job.scenario != plain or job.output_bag is not None or job.compare_topic):
        raise ValueError("these options replay a policy; give its parameter file with --params.")
