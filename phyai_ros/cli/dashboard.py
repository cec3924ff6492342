"""`phyai-ros dashboard`: the page that shows a running policy node."""

from __future__ import annotations

from typing import Annotated

import typer

from phyai_ros.cli.errors import CommandFailed


def dashboard(
    policy: Annotated[str, typer.Option(help="Name of the policy node, with its namespace")] = "policy",
    host: Annotated[
        str, typer.Option(help="Address to serve on; 0.0.0.0 lets the whole network look, without a password")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one")] = 8080,
) -> None:
    """Serve a page with the live control time of a policy node, until Ctrl-C. Read only."""
    from phyai_ros.dashboard.main import main

    values = {"policy": policy, "host": host, "port": port}
    if main(["--ros-args", *(part for name, value in values.items() for part in ("-p", f"{name}:={value}"))]):
        raise CommandFailed("the dashboard could not be served; the line above says why")
