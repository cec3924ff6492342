"""Guards against: a broken interpreter chosen for the venv, a user's torch or ROS packages replaced, missing system
packages told one by one, a failed step whose reason is hidden."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from package.source_tree import ROOT

PINS = {"torch": "torch==2.13.0", "triton": "triton==3.7.1", "numpy": "numpy==2.4.6"}


@pytest.fixture
def tools(monkeypatch):
    """The modules of tools/, importable for one test."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import pins
    import progress
    import system_check

    monkeypatch.setattr(pins, "has_nvidia_driver", lambda: False)
    yield pins, progress, system_check
    for name in ("pins", "progress", "system_check", "setup_venv"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("installed", "ros", "kept"),
    [
        ({}, False, {"torch", "triton", "numpy"}),
        ({"torch": "2.8.1"}, False, {"torch", "triton", "numpy"}),
        ({"torch": "2.11.0+cu130"}, False, {"numpy"}),
        ({"numpy": "1.26.4"}, False, {"torch", "triton", "numpy"}),
        ({"numpy": "1.26.4"}, True, {"torch", "triton"}),
    ],
)
def test_pins_leave_what_the_user_has(tools, installed, ros, kept):
    pins, _, _ = tools
    assert set(pins.select_pins(PINS, installed, ros)) == kept


def test_a_machine_with_an_nvidia_driver_is_not_held_to_the_cpu_build(tools, monkeypatch):
    pins, _, _ = tools
    monkeypatch.setattr(pins, "has_nvidia_driver", lambda: True)
    assert set(pins.select_pins(PINS, {}, False)) == {"numpy"}


def test_missing_system_packages_are_one_line(tools):
    _, _, system_check = tools
    text = system_check.describe([("a C compiler", "build-essential"), ("OpenGL", "libegl1 libgl1")])
    assert text.count("apt install") == 1
    assert text.endswith("apt install build-essential libegl1 libgl1")


def test_a_failed_step_shows_its_end_and_names_the_log(tools, tmp_path, monkeypatch):
    _, progress, _ = tools
    monkeypatch.chdir(tmp_path)
    program = "print('\\n'.join(map(str, range(100)))); raise SystemExit(3)"
    with pytest.raises(
        progress.StepError, match=r"Packages: failed \(exit code 3\)(?s:.*)99(?s:.*)log/setup.log"
    ) as error:
        progress.run_step("Packages", [sys.executable, "-c", program])
    assert "50" not in str(error.value)
    assert "50" in (tmp_path / progress.LOG).read_text()


def test_an_interrupted_set_up_is_a_sentence(tools, monkeypatch, capsys, tmp_path):
    import setup_venv

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup_venv, "build_messages", interrupt)
    monkeypatch.setattr(sys, "argv", ["setup_venv.py", "messages", "--venv", str(tmp_path)])
    assert setup_venv.main() == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("goal", "said"), [("setup", True), ("demo", False)])
def test_a_set_up_says_what_comes_next(goal, said):
    shown = subprocess.check_output(["make", "--dry-run", goal], cwd=ROOT, text=True)
    assert ("next: make demo" in shown) is said


def find_python(path, **variables) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "ROS_DISTRO": "", **variables}
    return subprocess.run([ROOT / "tools" / "find_python.sh"], env=environment, capture_output=True, text=True)


def make_command(path, name, script) -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


def test_a_shim_that_fails_is_passed_over(tmp_path):
    make_command(tmp_path, "python3.12", "echo not installed >&2; exit 127")
    make_command(tmp_path, "python3.11", f'exec "{sys.executable}" "$@"')
    found = find_python(tmp_path)
    assert found.returncode == 0
    assert os.access(found.stdout.strip(), os.X_OK)
    assert str(tmp_path) not in found.stdout


def test_a_named_python_that_does_not_fit_is_refused_with_its_name(tmp_path):
    make_command(tmp_path, "python3.9", "exit 1")
    found = find_python(tmp_path, PYTHON="python3.9")
    assert found.returncode == 1
    assert "PYTHON=python3.9" in found.stderr and "3.11 or 3.12" in found.stderr


def test_sourced_ros_without_rclpy_is_told(tmp_path):
    make_command(tmp_path, "python3", "exit 1")
    found = find_python(tmp_path, ROS_DISTRO="jazzy", AMENT_PREFIX_PATH="/opt/ros/jazzy")
    assert found.returncode == 1
    assert "apt install ros-jazzy-rclpy" in found.stderr
