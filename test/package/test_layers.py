"""Guards against: ROS below phyai_ros, core that knows a model, torch in the control tick's modules, path tricks,
commands that need ROS although they touch no graph."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import phyai_adapters
from package.source_tree import PACKAGES, list_imports, list_modules

MAY_IMPORT = {
    "phyai_kernels": {"phyai_kernels"},
    "phyai_core": {"phyai_core", "phyai_kernels"},
    "phyai_adapters": {"phyai_adapters", "phyai_core", "phyai_kernels"},
    "phyai_ros": {"phyai_ros", "phyai_core", "phyai_adapters"},
}
# phyai_ros finds a policy by its name or its files; only what trains the built-in policy names the module of a model.
MODELS = tuple(sorted({entry.partition(":")[0] for entry in phyai_adapters.ADAPTERS.values()}))
TRAINS_THE_BUILT_IN_POLICY = {"phyai_ros.sim.train", "phyai_ros.replay.train_bag"}
ROS = re.compile(r"(rclpy|\w+_msgs|\w+_interfaces|std_srvs|launch(_ros)?|ament_\w+|cv_bridge|rosidl_\w+)(\.|$)")
WITHOUT_TORCH = ("types", "clock", "rtc", "delay", "executor", "timing", "braking", "metrics")
MODULES = {name: path for package in PACKAGES for name, path in list_modules(package).items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_flow_one_way(package):
    for name, path in list_modules(package).items():
        for target in list_imports(path):
            assert not target.startswith("."), f"{name}: relative import {target}"
            top = target.split(".")[0]
            if top in PACKAGES:
                assert top in MAY_IMPORT[package], f"{name} imports {target}"


def test_phyai_ros_knows_no_model():
    for name, path in list_modules("phyai_ros").items():
        models = [target for target in list_imports(path) if target.startswith((*MODELS, "phyai_adapters._"))]
        assert not models or name in TRAINS_THE_BUILT_IN_POLICY, f"{name} imports {models}"


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "phyai_ros"])
def test_only_phyai_ros_knows_ros(package):
    for name, path in list_modules(package).items():
        assert not [target for target in list_imports(path) if ROS.match(target)], name


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_the_control_tick_does_not_import_torch(module):
    seen, open_names = set(), {f"phyai_core.{module}"}
    while open_names:
        name = open_names.pop()
        seen.add(name)
        targets = set(list_imports(MODULES[name], at_import_time=True))
        assert not [target for target in targets if target.split(".")[0] == "torch"], f"phyai_core.{module}, by {name}"
        parents = {target.rpartition(".")[0] for target in targets}
        open_names |= ((targets | parents) & set(MODULES)) - seen


def test_no_path_tricks():
    tricks = re.compile(r"sys\.path(\.(insert|append|extend)|\s*\+?=[^=]|\[)|spec_from_file_location|__import__\(")
    assert not [name for name, path in MODULES.items() if tricks.search(path.read_text())]


@pytest.mark.parametrize("module", ["cli.main", "cli.params", "cli.train"])
def test_commands_without_a_graph_run_without_ros(module):
    program = f"""
import importlib.abc, re, sys
class NoRos(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if re.match({ROS.pattern!r}, name):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoRos())
import phyai_ros.{module}
"""
    subprocess.run([sys.executable, "-c", program], check=True)
