"""`phyai-ros run`: the policy node with a parameter file, configured and activated, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phyai_ros.cli.errors import CommandFailed


def run(
    params_file: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="YAML file with the parameters")],
    namespace: Annotated[str, typer.Option(help="Namespace of the node; its topics are relative to it")] = "",
    node_name: Annotated[str, typer.Option(help="Name of the node")] = "policy",
    autostart: Annotated[bool, typer.Option(help="Configure and activate; otherwise leave that to you")] = True,
) -> None:
    """Run the policy node on this machine's ROS graph, as ros2 launch would."""
    from phyai_ros.policy_node import main
    from phyai_ros.replay.params_file import read_params_file

    place = namespace.strip("/")
    read_params_file(params_file, f"/{place}/{node_name}" if place else f"/{node_name}")  # tells mistakes as sentences
    remaps = ["-r", f"__node:={node_name}", *(["-r", f"__ns:=/{place}"] if place else [])]
    if main(["--ros-args", *remaps, "--params-file", str(params_file)], autostart):
        raise CommandFailed("the node could not be started; the lines above say why")
