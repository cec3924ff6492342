"""Guards against a page on replays whose commands, options or figures do not work as they are shown."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from phyai_ros.cli.main import run
from replay.live_rig import LiveRun
from replay.made_bags import MadeBag
from replay.replay_rig import knowing_policy, write_params

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "validate-with-a-bag.md").read_text()
SHOWN = re.findall(r"^    (phyai-ros .*)$", PAGE, flags=re.M)
OF_THE_DEMO = [command for command in SHOWN if "demo" in command]  # run on a true recording by test_demo_recording
OPTIONS = re.findall(r"^\| `(--?[a-z][^`]*)` \|", PAGE, flags=re.M)
REQUIREMENTS = re.findall(r"`([a-z_.0-9]+(?:[<>]=?|==)[0-9.]+)`", PAGE)
SHORTER = {"train": ["--steps", "2"]}  # as it is shown it takes minutes


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with the files that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    for name in ("config", "test"):
        (tmp_path / name).symlink_to(ROOT / name)
    with knowing_policy():
        MadeBag().write(tmp_path / "my_bag")
        shutil.copy(tmp_path / "my_bag" / "my_bag.mcap", "pick.mcap")
        shutil.move(LiveRun().record(tmp_path / "live"), "run.mcap")
        for name in ("my_robot.yaml", "arm.yaml"):
            write_params(Path(name))
        yield tmp_path


def test_the_page_shows_what_this_runs():
    assert len(SHOWN) >= 6 and len(OF_THE_DEMO) == 2 and len(OPTIONS) >= 7 and len(REQUIREMENTS) >= 5


@pytest.mark.parametrize("command", [command for command in SHOWN if command not in OF_THE_DEMO])
def test_a_command_does_what_the_page_says(desk, command):
    words = shlex.split(command)[1:]
    assert run([*words, *SHORTER.get(words[0], [])]) == 0


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_asks_its_question(desk, option, capsys):
    option = option.replace("cuda", "cpu")
    assert run(["replay", "my_bag", "--params", "my_robot.yaml", *shlex.split(option)]) == 0
    assert "Replay" in capsys.readouterr().out


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_requirement_names_a_figure(desk, requirement):
    assert run(["replay", "run.mcap", "--params", "my_robot.yaml", "--require", requirement]) in (0, 1)


def test_files_are_those_of_the_table(desk):
    named = re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", PAGE, flags=re.M)
    assert run(["replay", "my_bag", "--params", "my_robot.yaml", "--out", "out"]) == 0
    assert sorted(named) == sorted(path.name for path in (desk / "out").iterdir())
