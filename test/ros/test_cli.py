"""Guards against tracebacks for mistakes, wrong exit codes, and commands that ask for ROS without a use for it."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import warnings

import pytest
import yaml

from phyai_ros.cli import demo, own_graph
from phyai_ros.cli.bench_tick import parse_rates
from phyai_ros.cli.errors import CommandFailed
from phyai_ros.cli.main import COMMANDS, run
from phyai_ros.parameters import build_settings

WITHOUT_ROS = """
import sys
for name in ("rclpy", "ament_index_python", "sensor_msgs", "phyai_ros.msg"):
    sys.modules[name] = None
from phyai_ros.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def table(monkeypatch):
    """Register a function as `phyai-ros try`, with one line, as a new subcommand is."""

    def register(function):
        monkeypatch.setitem(sys.modules, "commands_of_this_test", types.SimpleNamespace(function=function))
        return {"try": "commands_of_this_test:function", "group other": "no_such_module:function"}

    return register


def run_without_ros(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WITHOUT_ROS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("rate is 0"), 2), (CommandFailed("it did not work"), 1), (KeyboardInterrupt(), 130), (None, 0)],
)
def test_every_end_has_its_exit_code_and_a_sentence(table, capsys, error, code):
    def function() -> None:
        if error is not None:
            raise error

    assert run(["try"], table(function)) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert str(error or "") in shown


def test_a_file_that_cannot_be_written_is_a_sentence(table, tmp_path, capsys):
    place = tmp_path / "a file" / "out"
    place.parent.write_text("")
    assert run(["try"], table(lambda: place.mkdir() if place.parent.exists() else None)) == 2
    shown = capsys.readouterr().err
    assert f"{place}: Not a directory" in shown and "Traceback" not in shown


def test_a_warning_is_a_sentence_without_a_line_of_code(table, capsys):
    def function() -> None:
        warnings.warn("prompt: cut to 24 tokens", stacklevel=1)
        warnings.warn("prompt: cut to 24 tokens", stacklevel=1)  # another line of code, the same news

    assert run(["try"], table(function)) == 0
    assert capsys.readouterr().err == "phyai-ros: prompt: cut to 24 tokens\n"


def test_a_defect_keeps_its_traceback(table):
    def function() -> None:
        raise KeyError("defect")

    with pytest.raises(KeyError):
        run(["try"], table(function))


def test_options_of_a_registered_function_reach_it(table):
    given = []

    def function(count: int = 1) -> None:
        given.append(count)

    assert run(["try", "--count", "3"], table(function)) == 0
    assert given == [3]
    assert run(["try", "--count", "many"], table(function)) == 2


def test_a_command_can_have_commands_of_its_own(table, capsys):
    ran = []

    def function(deep: bool = False) -> None:
        ran.append(deep)

    target = table(function)["try"]
    both = {"try": target, "try again": target}
    assert run(["try"], both) == run(["try", "--deep"], both) == run(["try", "again", "--deep"], both) == 0
    assert ran == [False, True, True]
    assert run(["try", "--help"], both) == 0
    assert "phyai-ros try again" in capsys.readouterr().out


def test_a_wrong_name_is_corrected(capsys):
    assert run(["parms"]) == 2
    assert "params" in capsys.readouterr().err


def test_help_lists_every_command_and_group(capsys):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name.split()[0] in shown for name in COMMANDS)
    assert run(["bench", "--help"]) == 0
    assert "tick" in capsys.readouterr().out


def test_params_writes_a_template_that_the_node_accepts(tmp_path):
    file = tmp_path / "new" / "policy.yaml"
    assert run(["params", "--yaml", str(file)]) == 0
    flat = {}

    def flatten(prefix, value):
        for name, entry in value.items():
            flatten(f"{prefix}{name}.", entry) if isinstance(entry, dict) else flat.update({f"{prefix}{name}": entry})

    flatten("", yaml.safe_load(file.read_text())["/**"]["ros__parameters"])
    assert build_settings(flat).cameras.keys == ("front",)


def test_params_finds_by_word_and_says_when_there_is_nothing(capsys, tmp_path):
    assert run(["params", "guidance", "--json", str(tmp_path / "params.json")]) == 0
    names = [row["name"] for row in json.loads((tmp_path / "params.json").read_text())]
    assert "rtc.max_guidance_weight" in names and "start.max_step_rad" not in names
    assert run(["params", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_commands_without_a_graph_run_without_ros(tmp_path):
    assert run_without_ros("params", "rtc").returncode == 0
    assert run_without_ros("train", "--help").returncode == 0
    file = tmp_path / "tick.json"
    done = run_without_ros("bench", "tick", "--rate", "100", "--seconds", "0.5", "--json", str(file))
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["publishing"] is False
    (rate,) = report["rates"]
    assert rate["ticks"] + rate["missed_ticks"] >= 40 and rate["chunks"] >= 1
    assert 0 <= rate["p50_ms"] <= rate["p99_ms"] <= rate["max_ms"]
    assert "missed: ticks left out because" in done.stdout and f"wrote {file}" in done.stdout


def test_the_demo_without_ros_says_what_to_do():
    done = run_without_ros("demo", "--headless")
    assert done.returncode == 2
    assert "make setup" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "0", "-5", "fast", "25,,50", "1e9"])
def test_rates_that_cannot_be_run_are_named(text):
    with pytest.raises(ValueError, match="--rate"):
        parse_rates(text)


def test_rates_are_read():
    assert parse_rates("25, 50,500") == [25.0, 50.0, 500.0]


def test_a_parameter_rule_without_its_sign_is_refused():
    with pytest.raises(ValueError, match="name:=value"):
        demo.check_overrides(["rtc.mode=none"])


def test_a_private_graph_keeps_what_the_user_set(tmp_path):
    chosen = own_graph.private_graph(tmp_path, tmp_path / "p.xml", {"ROS_DOMAIN_ID": "7", "HOME": "/h"})
    assert chosen["ROS_DOMAIN_ID"] == "7" and chosen["HOME"] == "/h"
    assert chosen["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert chosen["FASTDDS_DEFAULT_PROFILES_FILE"] == str(tmp_path / "p.xml")
    assert int(own_graph.private_graph(tmp_path, tmp_path, {})["ROS_DOMAIN_ID"]) in own_graph.DOMAINS
    assert own_graph.private_graph(tmp_path, tmp_path, {"ROS_DISTRO": "humble"})["ROS_LOCALHOST_ONLY"] == "1"


def test_training_reports_null_for_what_it_could_not_measure(tmp_path):
    options = ["--quick", "--episodes", "2", "--steps", "2", "--evaluate", "1", "--out", str(tmp_path)]
    assert run(["train", *options, "--json", str(tmp_path / "train.json")]) == 0
    report = json.loads((tmp_path / "train.json").read_text())
    assert report["config_steps"] == 2 and report["config_evaluation_episodes"] == 1
    assert report["success_time_s"] is None and report["success_rate"] == 0.0
    assert run(["train", *options, "--min-success-rate", "0.5"]) == 1
