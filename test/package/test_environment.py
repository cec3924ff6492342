"""Guards against: nodes that do not find their own package, children that start another Python, endless restarts,
and shells of ROS users whose settings are changed without need."""

from __future__ import annotations

import os
import sys

import pytest

from phyai_ros.environment import prepare_environment


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """A virtual environment that holds the package, and a process that knows nothing of it."""
    for file in ("share/ament_index/resource_index/packages/phyai_ros", "lib/libphyai_ros__rosidl_typesupport_c.so"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    for variable in ("AMENT_PREFIX_PATH", "LD_LIBRARY_PATH", "PHYAI_ROS_RESTARTED"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")
    return tmp_path


@pytest.fixture
def restarts(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execv", lambda *arguments: calls.append(arguments))
    return calls


def test_shows_the_prefix_and_restarts_for_the_libraries(prefix, restarts):
    prepare_environment(prefix)
    assert os.environ["AMENT_PREFIX_PATH"] == str(prefix)
    assert os.environ["PATH"] == f"{prefix}/bin:/usr/bin"
    assert os.environ["LD_LIBRARY_PATH"] == f"{prefix}/lib"
    assert restarts == [(sys.executable, sys.orig_argv)]


def test_restarts_only_once(prefix, restarts, monkeypatch):
    prepare_environment(prefix)
    prepare_environment(prefix)
    monkeypatch.delenv("LD_LIBRARY_PATH")  # something between us and the new process dropped it
    prepare_environment(prefix)
    assert len(restarts) == 1


def test_keeps_what_is_sourced_behind_it(prefix, restarts, monkeypatch):
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/jazzy")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/ros/jazzy/lib:{prefix}/lib")
    prepare_environment(prefix)
    assert os.environ["AMENT_PREFIX_PATH"] == f"{prefix}:/opt/ros/jazzy"
    assert not restarts


def test_leaves_a_process_outside_of_a_prefix_alone(prefix, restarts):
    (prefix / "share/ament_index/resource_index/packages/phyai_ros").unlink()
    before = dict(os.environ)
    prepare_environment(prefix)
    assert dict(os.environ) == before
    assert not restarts


def test_a_sourced_workspace_with_the_package_goes_first(prefix, restarts, tmp_path_factory, monkeypatch):
    workspace = tmp_path_factory.mktemp("workspace")
    (workspace / "share/ament_index/resource_index/packages").mkdir(parents=True)
    (workspace / "share/ament_index/resource_index/packages/phyai_ros").touch()
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(workspace))
    prepare_environment(prefix)
    assert os.environ["AMENT_PREFIX_PATH"] == str(workspace)
    assert not restarts
