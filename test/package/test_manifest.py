"""Guards against: dependencies that nobody declared, names without a pinned version, versions and lists that disagree,
a manifest that ROS tools refuse."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

from package.source_tree import PACKAGES, ROOT, list_files, list_imports, list_modules

MANIFEST = ElementTree.parse(ROOT / "package.xml")
RUN_FILES = ("requirements.txt", "tools/requirements-apt.txt")
WHEEL_FILES = (*RUN_FILES, "tools/requirements-dev.txt", "tools/requirements-ros.txt")
PACKAGE_OF_MODULE = {"cv2": "opencv-python-headless", "yaml": "pyyaml", "PIL": "pillow", "OpenGL": "mujoco"}
APT_NAMES = {"opencv-python-headless": "python3-opencv", "pyyaml": "python3-yaml", "pillow": "python3-pil"}
# Used where they import, named in requirements.txt.
OPTIONAL = {"flashinfer", "onnxruntime", "ruckig", "sentencepiece", "tokenizers"}


def read_names(file: str) -> set[str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return {re.split(r"[<>=;\s]", line)[0].lower().replace("_", "-") for line in lines if line}


def list_dependencies(kinds: str) -> set[str]:
    return {element.text for element in MANIFEST.getroot() if re.fullmatch(kinds, element.tag)}


def list_foreign_modules(files) -> set[str]:
    tops = {target.split(".")[0] for path in files for target in list_imports(path)}
    return {top for top in tops if top not in sys.stdlib_module_names and top not in PACKAGES and top not in OPTIONAL}


def test_every_import_is_declared():
    packages = [path for package in PACKAGES for path in list_modules(package).values()]
    from_pip = set().union(*(read_names(file) for file in RUN_FILES))
    from_ros = list_dependencies("(exec_)?depend")
    undeclared = {
        module
        for module in list_foreign_modules(packages + list_files((".py",), ROOT / "launch"))
        if PACKAGE_OF_MODULE.get(module, module).replace("_", "-") not in from_pip and module not in from_ros
    }
    assert not undeclared, f"neither package.xml nor a requirements file names {undeclared}"


def test_apt_packages_are_the_same_in_both_worlds():
    expected = {APT_NAMES.get(name, f"python3-{name}") for name in read_names("tools/requirements-apt.txt")}
    assert {name for name in list_dependencies("exec_depend") if name.startswith("python3-")} == expected


def test_every_requirement_is_pinned():
    pinned = {re.split("==", line)[0] for line in read_names("constraints.txt")}
    assert set().union(*(read_names(file) for file in WHEEL_FILES)) <= pinned
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert all(re.match(r"[\w.-]+==[\w.]+( ;|$)", line) for line in lines if line)


def test_version_is_written_once_and_logged():
    version = MANIFEST.findtext("version")
    assert "VERSION 0" not in (ROOT / "CMakeLists.txt").read_text()
    assert 'dynamic = ["version"' in (ROOT / "pyproject.toml").read_text()
    headings = re.findall(r"^(Forthcoming|\d+\.\d+\.\d+.*)$", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)
    assert headings[0] == "Forthcoming" or headings[0].startswith(version)


def test_licence_and_description_agree():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'license = "{MANIFEST.findtext("license")}"' in project
    assert f'description = "{MANIFEST.findtext("description")}"' in project


def test_ros_tools_accept_the_manifest():
    catkin_package = pytest.importorskip("catkin_pkg.package")
    warnings: list[str] = []
    catkin_package.parse_package(str(ROOT / "package.xml"), warnings=warnings).validate(warnings=warnings)
    assert not warnings


def test_every_executable_is_installed_and_exists():
    cmake = (ROOT / "cmake" / "install_python.cmake").read_text()
    nodes = re.search(r"PHYAI_EXECUTABLES (.*)\)", cmake)[1].split()
    assert {path.name for path in (ROOT / "scripts").iterdir()} == {*nodes, "phyai-ros"}
    for node in nodes:
        script = ROOT / "scripts" / node
        module = re.search(r"^from (phyai_ros\.\S+) import main", script.read_text(), re.MULTILINE)[1]
        assert "def main(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()
        assert script.stat().st_mode & 0o111
