"""One run of the demo: two processes, a lifecycle, episodes until there are enough of them, an orderly end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.graph_client import GraphClient
from phyai_ros.cli.processes import Child, describe_exit, share_folder
from phyai_ros.cli.recording import Recorder
from phyai_ros.run_record import RunRecord

CONFIGURE_TIMEOUT_S, ACTIVATE_TIMEOUT_S = 120.0, 30.0  # a first import of torch from a cold disk is slow
STALL_TIMEOUT_S = 40.0  # an episode takes 4.4 s at most
REFRESH_S = 0.125


@dataclass(frozen=True)
class DemoOptions:
    """What is run. `mode` rtc leaves rtc.mode as the parameter file says."""

    mode: str = "rtc"
    episodes: int = 10
    seed: int = 0
    inject_delay_s: float = 0.0
    overrides: tuple[str, ...] = ()  # more policy parameters as name:=value
    bag: Path | None = None  # where to record every topic of the run


class DemoInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: what was seen until then, None before there was anything to see, and how the nodes ended."""

    def __init__(self, record: RunRecord | None, children: Sequence[Child]) -> None:
        super().__init__()
        self.record = record
        self.endings = [f"{child.name} ({describe_exit(child.stop())})" for child in children]


def run_demo(
    options: DemoOptions, logs: Path, show: Callable[[Recorder], None], with_images: bool = False
) -> RunRecord:
    """Run it to its end; `show` is called several times a second. Raises CommandFailed saying what went wrong.

    Call `enter_own_graph` before. Whatever happens, the nodes have ended when this returns or raises.
    """
    children: list[Child] = []
    recorder = None
    try:
        with ExitStack() as running:
            for name, arguments in (("sim_robot", simulator_arguments), ("policy_node", policy_arguments)):
                child = Child(name, arguments(options), os.environ, logs / f"{name}_{options.mode}.log")
                running.callback(child.stop)  # the policy first, so that its braking stop still meets a robot
                children.append(child)

            def watch() -> None:
                for child in children:
                    child.check()

            client = running.enter_context(GraphClient("phyai_demo", watch))
            if options.bag is not None:
                from phyai_ros.replay.demo_topics import record_demo

                running.enter_context(record_demo(client.node, options.bag))
            recorder = Recorder(client.node, options.mode, with_images)
            _bring_up(client, children[-1])
            _follow(recorder, options.episodes, watch, show)
            return recorder.freeze()
    except KeyboardInterrupt as interrupt:
        raise DemoInterrupted(recorder and recorder.freeze(), children[::-1]) from interrupt


def simulator_arguments(options: DemoOptions) -> list[str]:
    return ros_arguments({"seed": options.seed, "episodes": options.episodes})


def policy_arguments(options: DemoOptions) -> list[str]:
    parameters = {"inference.seed": options.seed, "inference.inject_delay_s": float(options.inject_delay_s)}
    if options.mode != "rtc":
        parameters["rtc.mode"] = options.mode
    more = [part for rule in options.overrides for part in ("-p", rule)]
    return [*ros_arguments(parameters, share_folder() / "config" / "demo.yaml"), *more]


def ros_arguments(parameters: Mapping[str, object], params_file: Path | None = None) -> list[str]:
    file = ["--params-file", str(params_file)] if params_file is not None else []
    return ["--ros-args", *file, *(part for name, value in parameters.items() for part in ("-p", f"{name}:={value}"))]


def _bring_up(client: GraphClient, policy: Child) -> None:
    try:
        client.change_state("policy", "configure", CONFIGURE_TIMEOUT_S)
        client.change_state("policy", "activate", ACTIVATE_TIMEOUT_S)
    except CommandFailed as failure:
        if policy.tail() and policy.tail() not in str(failure):
            raise CommandFailed(f"{failure}. The end of its log, {policy.log}:\n{policy.tail()}") from failure
        raise


def _follow(recorder: Recorder, episodes: int, watch: Callable[[], None], show: Callable[[Recorder], None]) -> None:
    ended, news_at = 0, time.monotonic()
    while len(recorder.episodes) < episodes:
        recorder.wait_for_episode(ended, REFRESH_S)
        watch()
        show(recorder)
        if len(recorder.episodes) > ended:
            ended, news_at = len(recorder.episodes), time.monotonic()
        if time.monotonic() - news_at > STALL_TIMEOUT_S:
            said = f"{recorder.status.state}: {recorder.status.text}" if recorder.status else "nothing"
            raise CommandFailed(f"no episode ended within {STALL_TIMEOUT_S:g} s; the policy node says {said}")
    show(recorder)
