"""Fixtures for tests that talk over ROS. Tests without them need no ROS."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ros_environment(tmp_path_factory):
    """A ROS domain of this test process's own, set in the environment before rclpy reads it; gives its number."""
    pytest.importorskip("rclpy", reason="rclpy is not installed")
    from ros.graph import Domain, make_environment

    domain = Domain()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in make_environment(domain.number, tmp_path_factory.mktemp("ros_log")).items():
            patch.setenv(name, value)
        yield domain.number
    domain.close()


@pytest.fixture
def graph(ros_environment, tmp_path):
    """An empty ROS graph; see ros.graph.Graph."""
    from ros.graph import Graph

    graph = Graph(ros_environment, tmp_path)
    yield graph
    graph.close()
