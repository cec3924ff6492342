"""`phyai-ros doctor`: what keeps a policy from running here, each with its fix."""

from __future__ import annotations

from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from phyai_ros.cli.console import make_console, tell_written
from phyai_ros.cli.errors import CommandFailed

if TYPE_CHECKING:
    from phyai_ros.doctor.checks import Check

STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def doctor(
    params: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Parameter file of the policy node")
    ] = None,
    node: Annotated[str, typer.Option(help="Name of the policy node, with its namespace")] = "/policy",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the findings")] = None,
    seconds: Annotated[float, typer.Option(min=0.2, max=60, help="How long to listen to the inputs")] = 2.0,
    offline: Annotated[bool, typer.Option("--offline", help="Files and machine only; no ROS graph")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for a warning too")] = False,
) -> None:
    """Check parameters, policy, machine, topics and controllers before a robot moves. Publishes nothing."""
    from phyai_ros.doctor.checks import Level, worst

    policy_name = f"/{node.strip('/')}"
    checks = examine(params, policy_name, seconds, offline)
    console = make_console()
    console.print(make_table(checks))
    counts = {level: sum(check.level is level for check in checks) for level in Level}
    console.print(f"{counts[Level.FAIL]} FAIL, {counts[Level.WARN]} WARN, {counts[Level.OK]} OK", highlight=False)
    if json_file is not None:
        from phyai_ros.cli.summary import write_json

        write_json(json_file, {"ok": worst(checks) < Level.FAIL, "checks": [to_dict(check) for check in checks]})
        tell_written(console, json_file)
    if worst(checks) >= (Level.WARN if strict else Level.FAIL):
        raise CommandFailed("not ready; the table says what to mend")


def examine(params: Path | None, policy_name: str, seconds: float, offline: bool) -> list[Check]:
    """All checks; those of the inputs need a parameter file."""
    from phyai_ros.doctor.examine import check_machine, examine_files, examine_graph, examine_node

    settings, policy, checks = (None, None, []) if params is None else examine_files(params, policy_name)
    checks += check_machine(settings)
    with closing(policy) if policy else nullcontext():
        if offline:
            return checks
        with own_node(params, policy_name) as node:
            if policy is not None:
                checks += examine_graph(node, policy, policy_name, seconds)
            return checks + examine_node(node, policy_name)


@contextmanager
def own_node(params: Path | None, policy_name: str):
    """A node in the policy's namespace, on the policy's clock."""
    import rclpy
    from rclpy.parameter import Parameter
    from rclpy.signals import SignalHandlerOptions

    from phyai_ros.replay.params_file import read_params_file

    try:
        simulated = bool(params and read_params_file(params, policy_name).get("use_sim_time"))
    except ValueError:  # told already
        simulated = False
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(
        "phyai_doctor",
        namespace=policy_name.rpartition("/")[0] or "/",
        parameter_overrides=[Parameter("use_sim_time", value=simulated)],
        start_parameter_services=False,
    )
    try:
        yield node
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def make_table(checks: list[Check]) -> Table:
    """Worst first within each area; the fix stands below what it mends."""
    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for name in ("", "area", "check", "found"):
        table.add_column(name, header_style="dim", overflow="fold")
    for check in checks:
        found = Text(check.text)
        if check.fix:
            found.append(f"\n→ {check.fix}", "cyan")
        table.add_row(Text(check.level.name, STYLES[check.level.name]), Text(check.area), Text(check.name), found)
    return table


def to_dict(check: Check) -> dict[str, str]:
    return {**vars(check), "level": check.level.name}
