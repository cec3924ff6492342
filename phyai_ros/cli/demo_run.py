"""One run of the demo: two processes, a lifecycle, episodes until there are enough of them, an orderly end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ament_index_python.packages import get_package_share_directory

from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.graph_client import GraphClient
from phyai_ros.cli.processes import Child, private_graph
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


def run_demo(
    options: DemoOptions, logs: Path, show: Callable[[Recorder], None], with_images: bool = False
) -> RunRecord:
    """Run it to its end; `show` is called several times a second. Raises CommandFailed saying what went wrong.

    Call `enter_own_graph` before.
    """
    with ExitStack() as running:
        simulator = Child("sim_robot", simulator_arguments(options), os.environ, logs / f"sim_robot_{options.mode}.log")
        running.callback(simulator.stop)
        policy = Child("policy_node", policy_arguments(options), os.environ, logs / f"policy_node_{options.mode}.log")
        running.callback(policy.stop)  # first, so that its braking stop still meets a robot

        def watch() -> None:
            simulator.check()
            policy.check()

        client = running.enter_context(GraphClient("phyai_demo", watch))
        if options.bag is not None:
            from phyai_ros.replay.demo_topics import record_demo

            running.enter_context(record_demo(client.node, options.bag))
        recorder = Recorder(client.node, options.mode, with_images)
        _bring_up(client, policy)
        _follow(recorder, options.episodes, watch, show)
        return recorder.freeze()


def enter_own_graph(logs: Path) -> str:
    """Put this process and its children in a ROS graph of their own, unless the user chose one; returns its domain."""
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(private_graph(logs.resolve(), share_folder() / "config" / "fastdds_shm.xml", os.environ))
    return os.environ["ROS_DOMAIN_ID"]


def share_folder() -> Path:
    return Path(get_package_share_directory("phyai_ros"))


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
