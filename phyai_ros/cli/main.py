"""The command `phyai-ros`: a table of subcommands, each imported only when it is asked for.

Exit codes: 0 done, 1 it ran and the result is not good, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial

import typer
from typer.core import TyperGroup

from phyai_ros.cli.console import tell_on_stderr
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.environment import prepare_environment

COMMANDS = {
    "demo": "phyai_ros.cli.demo:demo",
    "run": "phyai_ros.cli.run:run",
    "dashboard": "phyai_ros.cli.dashboard:dashboard",
    "top": "phyai_ros.cli.top:top",
    "report": "phyai_ros.cli.report:report",
    "doctor": "phyai_ros.cli.doctor:doctor",
    "replay": "phyai_ros.cli.replay:replay",
    "inspect": "phyai_ros.cli.inspect:inspect",
    "verify": "phyai_ros.cli.verify:verify",
    "profile": "phyai_ros.cli.profile:profile",
    "quantize": "phyai_ros.cli.quantize:quantize",
    "bench": "phyai_ros.cli.bench:bench",
    "bench tick": "phyai_ros.cli.bench_tick:bench_tick",
    "rtc-bench": "phyai_ros.cli.rtc_bench:rtc_bench",
    "train": "phyai_ros.cli.train:train",
    "params": "phyai_ros.cli.params:params",
}
HELP = {
    "": "Runs vision-language-action policies on a robot in real time.",
    "bench": "Measure this machine.",
}


class LazyGroup(TyperGroup):
    """A group of commands that imports one when it is needed. `table` maps "group command" to "module:function".

    A name may be both: with "bench" and "bench tick" in the table, `bench` runs unless `tick` follows it.
    """

    def __init__(self, table: Mapping[str, str], prefix: str = "", **kwargs) -> None:
        super().__init__(help=HELP.get(prefix), no_args_is_help=True, **kwargs)
        self._table, self._prefix = table, prefix
        self.commands = dict.fromkeys(children(table, prefix))  # names only; suggestions are made from them

    def list_commands(self, ctx: typer.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: typer.Context, cmd_name: str):
        if cmd_name not in self.commands:
            return None
        name = f"{self._prefix} {cmd_name}".strip()
        if name not in self._table:
            return LazyGroup(self._table, name, name=cmd_name)
        module, _, function = self._table[name].partition(":")
        app = typer.Typer(add_completion=False)
        more = ", ".join(f"phyai-ros {name} {child}" for child in children(self._table, name))
        app.command(cmd_name, epilog=f"See also: {more}" if more else None)(
            getattr(importlib.import_module(module), function)
        )
        return typer.main.get_command(app)

    def resolve_command(self, ctx: typer.Context, args: list[str]):
        name = f"{self._prefix} {args[0]}".strip()
        if args[1:] and args[1] in children(self._table, name):
            return args[0], LazyGroup(self._table, name, name=args[0]), args[1:]
        return super().resolve_command(ctx, args)


def children(table: Mapping[str, str], prefix: str) -> list[str]:
    """The words that may follow `prefix`, in the order of the table."""
    below = [name.removeprefix(f"{prefix} ") for name in table if not prefix or name.startswith(f"{prefix} ")]
    return list(dict.fromkeys(name.split()[0] for name in below))


def run(argv: Sequence[str] | None = None, table: Mapping[str, str] = COMMANDS) -> int:
    """Run one command and return its exit code. Mistakes (ValueError, files that cannot be read or written) and
    failures become sentences on stderr.
    """
    try:
        with warnings.catch_warnings():
            tell_once = cache(partial(tell_on_stderr, style="yellow"))
            warnings.showwarning = lambda message, *_, **__: tell_once(str(message))
            LazyGroup(table, name="phyai-ros").main(args=argv, prog_name="phyai-ros")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (ValueError, CommandFailed) as error:
        tell_on_stderr(error, "red")
        return 2 if isinstance(error, ValueError) else 1
    except OSError as error:
        if error.filename is None:  # no file of the user's
            raise
        tell_on_stderr(f"{error.filename}: {error.strerror}", "red")
        return 2
    return 0


def main() -> int:
    """Entry point of the script `phyai-ros`."""
    prepare_environment()
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
