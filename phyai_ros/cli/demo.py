"""`phyai-ros demo`: a simulated arm, seen by a camera, driven by the built-in policy over ROS 2 topics."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.host import host_facts, host_line
from phyai_ros.cli.summary import make_table, summarise, write_json
from phyai_ros.run_record import load_record, save_record

if TYPE_CHECKING:
    from rich.console import Console

    from phyai_ros.cli.demo_run import DemoInterrupted, DemoOptions
    from phyai_ros.cli.demo_view import Scene
    from phyai_ros.cli.recording import Recorder

DEFAULT_FOLDER = Path("out/demo")
SAME_CONDITIONS = ("seed", "inject_delay_s")  # of runs that may stand in one picture


class Mode(str, Enum):
    """Values of --mode."""

    rtc = "rtc"
    none = "none"
    sync = "sync"


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="Print a line per episode instead of the live view")
    ] = False,
    episodes: Annotated[int, typer.Option(min=1, max=1000, help="Episodes of up to 4.4 s")] = 10,
    mode: Annotated[
        Mode, typer.Option(help="rtc: as config/demo.yaml says; none: swap chunks as they come; sync: wait")
    ] = Mode.rtc,
    compare: Annotated[bool, typer.Option("--compare", help="Run all modes one after the other")] = False,
    inject_delay: Annotated[float, typer.Option(min=0, max=10, help="Make each inference slower, s")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the episodes and the policy's noise")] = 0,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="Policy parameter as name:=value; repeat it")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures; with --compare one file per mode")
    ] = None,
    plots: Annotated[
        Path, typer.Option(help="Folder for pictures, data and logs; runs of other modes found in it are drawn too")
    ] = DEFAULT_FOLDER,
    record: Annotated[
        Path | None, typer.Option(help="Also write a bag: an .mcap file, or a rosbag2 folder without that ending")
    ] = None,
    min_successes: Annotated[int, typer.Option(min=0, help="Exit with 1 below so many successes")] = 0,
) -> None:
    """Drive the simulated robot with the built-in policy, live, and show what real-time chunking does."""
    require_ros()
    from phyai_ros.cli.demo_run import DemoInterrupted, DemoOptions
    from phyai_ros.cli.own_graph import enter_own_graph

    check_overrides(param or [])
    if record is not None and compare:
        raise ValueError("--record and --compare: give one of them; a bag holds one run.")
    domain, console = enter_own_graph(plots / "logs"), make_console()
    title = f"episodes: {episodes}, seed: {seed}, inference slowed by {inject_delay:g} s"
    summaries = []
    for current in list(Mode) if compare else [mode]:
        options = DemoOptions(current.value, episodes, seed, inject_delay, tuple(param or []), record)
        try:
            summaries.append(run_mode(options, plots, headless or not console.is_terminal, console, domain))
        except DemoInterrupted as interrupt:
            show_interrupt(console, interrupt, summaries, title)
            raise
        if json_file is not None:
            target = json_file.with_stem(f"{json_file.stem}_{current.value}") if compare else json_file
            write_json(target, summaries[-1])
            tell_written(console, target)
    console.print(make_table(summaries, title))
    for path in draw_plots(plots, summaries[-1]):
        tell_written(console, path)
    worst = min(summary["successes"] for summary in summaries)
    if worst < min_successes:
        raise CommandFailed(f"{worst} of {episodes} episodes succeeded, fewer than the {min_successes} asked for")


def show_interrupt(console: Console, interrupt: DemoInterrupted, summaries: list[dict[str, Any]], title: str) -> None:
    """What was stopped, and the result so far: of the runs that were whole, and of this one."""
    console.print(f"interrupted; ended {', '.join(interrupt.endings) or 'before a node was started'}", highlight=False)
    if interrupt.record is not None and interrupt.record.episodes:
        summaries = [*summaries, summarise(interrupt.record)]
    if summaries:
        console.print(make_table(summaries, f"so far; {title}"))
    else:
        console.print("no episode had ended", highlight=False)


def run_mode(options: DemoOptions, folder: Path, headless: bool, console: Console, domain: str) -> dict[str, Any]:
    """One run; its record is kept in `folder` for the plots. Returns its figures."""
    from phyai_ros.cli.demo_run import run_demo

    with sigterm_as_interrupt(), view(options, domain, headless, console) as show:
        record = run_demo(options, folder / "logs", show, with_images=not headless)
    more = {"seed": options.seed, "inject_delay_s": options.inject_delay_s, **host_facts()}
    summary = summarise(record) | more
    save_record(record, folder / f"run_{options.mode}.npz")
    write_json(folder / f"run_{options.mode}.json", summary)
    return summary


@contextmanager
def view(options: DemoOptions, domain: str, headless: bool, console: Console) -> Iterator[Callable[[Recorder], None]]:
    """Gives the function that shows progress: a live view on a terminal, a line per episode otherwise."""
    from phyai_ros.cli.demo_view import Scene, render

    delay = f", inference slowed by {options.inject_delay_s:g} s" if options.inject_delay_s else ""
    scene = Scene(f"phyai_ros demo: mode {options.mode}{delay}, ROS_DOMAIN_ID={domain}", options.episodes)
    if headless:
        console.print(scene.title, highlight=False)
        yield EpisodeLines(scene, console).show
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda recorder: live.update(render(scene, recorder), refresh=True)


class EpisodeLines:
    """Prints a line when an episode has ended."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene, self._console = scene, console
        self._printed = 0

    def show(self, recorder: Recorder) -> None:
        for episode in recorder.episodes[self._printed :]:
            took = f"{episode.end_s - episode.start_s:.1f} s"
            line = f"episode {episode.number} of {self._scene.episodes}: {episode.outcome} after {took}"
            self._console.print(line, highlight=False)
        self._printed = len(recorder.episodes)


def draw_plots(folder: Path, like: dict[str, Any]) -> list[Path]:
    """Draw the runs kept in `folder` that were made under the conditions of `like`. Returns the pictures."""
    from phyai_ros.plots import Run, plot_chunks, plot_command, save
    from phyai_ros.roofline_plot import plot_roofline

    runs = []
    for data in sorted(folder.glob("run_*.npz")):
        summary = json.loads(data.with_suffix(".json").read_text())
        if all(summary[name] == like[name] for name in SAME_CONDITIONS):
            runs.append(Run(load_record(data), summary, host_line(summary)))
    figures = {"command": plot_command(runs), "chunks": plot_chunks(runs), "roofline": plot_roofline(runs)}
    paths = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in paths.items():
        save(figure, path)
    return list(paths)


def require_ros() -> None:
    if importlib.util.find_spec("rclpy") is None:
        raise ValueError(
            "the demo needs ROS 2, and rclpy is not installed here; run make setup, or source a ROS installation."
        )


def check_overrides(rules: list[str]) -> None:
    for rule in rules:
        if ":=" not in rule:
            raise ValueError(f"--param is {rule!r}; allowed is name:=value, for example rtc.execution_horizon:=10.")


@contextmanager
def sigterm_as_interrupt():
    """While it lasts, SIGTERM ends this process the way Ctrl-C does, children included."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
