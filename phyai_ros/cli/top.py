"""`phyai-ros top`: a running policy node in the terminal, attached over its topics."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from phyai_ros.cli.errors import CommandFailed

REFRESH_S, HEARD_WITHIN_S, COLLECT_S = 0.25, 8.0, 1.5


def top(
    policy: Annotated[str, typer.Option(help="Name of the policy node, with its namespace")] = "policy",
    once: Annotated[
        bool, typer.Option(help="Listen for a moment, print once and end; 1 when nothing is heard")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0, help="End after so long; 0: at Ctrl-C")] = 0.0,
) -> None:
    """Show state, control time and counters of a policy node, live."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from phyai_ros.dashboard.feed import Feed

    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("phyai_top", start_parameter_services=False)
    feed = Feed(node, policy if policy.startswith("/") else f"/{policy}", with_images=False)
    feed.open()
    try:
        heard = print_once(feed, Console()) if once else watch(feed, Console(), seconds)
    finally:
        feed.close()
        node.destroy_node()
        rclpy.try_shutdown()
    if not heard:
        domain = os.environ.get("ROS_DOMAIN_ID", "0")
        raise CommandFailed(
            f"nothing was heard of {feed.policy}; is it active, and with ROS_DOMAIN_ID={domain} as here?"
        )


def print_once(feed, console: Console) -> bool:
    """Whether anything was heard."""
    from phyai_ros.cli.top_view import render
    from phyai_ros.dashboard.snapshot import make_snapshot

    end_s = time.monotonic() + HEARD_WITHIN_S
    while feed.poll().status is None and time.monotonic() < end_s:
        time.sleep(REFRESH_S)
    time.sleep(COLLECT_S)
    console.print(render(make_snapshot(feed.poll(), feed.policy)))
    return feed.seen.status is not None


def watch(feed, console: Console, seconds: float) -> bool:
    """Until Ctrl-C, or for so many seconds."""
    from phyai_ros.cli.top_view import render
    from phyai_ros.dashboard.snapshot import make_snapshot

    end_s = time.monotonic() + (seconds or float("inf"))
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while time.monotonic() < end_s:
            live.update(render(make_snapshot(feed.poll(), feed.policy)), refresh=True)
            time.sleep(REFRESH_S)
    return feed.seen.status is not None
