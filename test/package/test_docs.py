"""Guards against documentation that shows commands, options, launch arguments, make goals or files that do not exist.

Running them is the work of other tests (test_cli, test_demo, test_launch, test_run) and of .ci/run; here every command
in the README and in docs/ is taken apart and each piece of it has to be there.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from phyai_ros.cli.main import COMMANDS, LazyGroup

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("make", "phyai-ros", "ros2", "colcon", "rosdep", "pip", "git", "cd", ".", "export")


def shown_commands() -> list[tuple[str, str]]:
    """(page, command) of every indented or fenced shell line, joined commands taken apart."""
    found = []
    for page in PAGES:
        text = re.sub(r"```(?:yaml|python|json|xml|cpp|text).*?```", "", page.read_text(), flags=re.S)
        for line in re.findall(r"^(?: {4}|```(?:bash|sh)\n)(\S.*)$", text, flags=re.M):
            for part in re.split(r"\s+&&\s+", line.split("  #")[0].strip()):
                if part.split()[0] in PROGRAMS:
                    found.append((page.relative_to(ROOT).as_posix(), part))
    return found


COMMANDS_SHOWN = shown_commands()


def select(*programs: str) -> list[pytest.param]:
    return [pytest.param(c, id=f"{page}: {c}") for page, c in COMMANDS_SHOWN if c.split()[0] in programs]


def test_the_pages_show_commands():
    assert {page for page, _ in COMMANDS_SHOWN} >= {"README.md", "docs/tutorial.md", "docs/how-to/own-robot.md"}
    assert len(select("phyai-ros")) >= 4


@pytest.mark.parametrize("command", select("phyai-ros"))
def test_phyai_ros_commands_parse(command, tmp_path, monkeypatch):
    """Every subcommand and option exists and takes what is shown; files named as input are made up on the spot."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    for word in words:
        if word.endswith((".yaml", ".json", ".mcap", ".jsonl")):
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).write_text("{}\n")
    parse(LazyGroup(COMMANDS, name="phyai-ros"), words)


def parse(group: LazyGroup, words: list[str]) -> None:
    """Walk down to the subcommand and parse its arguments without running it."""
    name, command, rest = group.resolve_command(group.make_context("phyai-ros", list(words)), list(words))
    if isinstance(command, LazyGroup):
        parse(command, rest)
    else:
        command.make_context(name, rest)


@pytest.mark.parametrize("command", select("make"))
def test_make_goals_exist(command):
    goals = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert shlex.split(command)[1] in goals


@pytest.mark.parametrize("command", select("ros2"))
def test_launch_files_and_arguments_exist(command):
    words = shlex.split(command)
    if words[1] != "launch":
        assert words[1] in ("topic", "run", "lifecycle", "param", "security", "service", "bag", "control", "action")
        return
    source = (ROOT / "launch" / words[3]).read_text()
    for argument in words[4:]:
        assert f'"{argument.split(":=")[0]}"' in source, argument


def test_yaml_examples_are_accepted_by_the_node():
    from phyai_ros.parameters import build_settings

    shown = [text for page in PAGES for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.S)]
    examples = [yaml.safe_load(text) for text in shown]
    examples = [tree["/**"]["ros__parameters"] for tree in examples if isinstance(tree, dict) and "/**" in tree]
    assert examples
    for example in examples:
        build_settings(dict(flatten(example)))


def flatten(tree: dict, prefix: str = ""):
    for key, value in tree.items():
        yield from flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]


def test_the_index_names_every_page_once():
    index = ROOT / "docs" / "README.md"
    linked = re.findall(r"\]\(([^)]+)\)", index.read_text())
    pages = [page.relative_to(index.parent).as_posix() for page in index.parent.rglob("*.md") if page != index]
    assert sorted(linked) == sorted(pages)


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(((?!https?:)[^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
