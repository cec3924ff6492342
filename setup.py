"""The pip build: runs CMakeLists.txt, as colcon does, and puts what it installs into the wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from xml.etree import ElementTree

import pins  # tools/, on the path of the build back end
from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE_FOLDERS = {
    "phyai_ros": "phyai_ros",
    "phyai_core": "phyai_core",
    "phyai_adapters": "adapters",
    "phyai_kernels": "kernels",
}
NOT_IN_WHEEL = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.c")


class BinaryDistribution(Distribution):
    """The messages are compiled: the wheel belongs to one platform and one Python."""

    def has_ext_modules(self) -> bool:
        return True


class BuildWithCMake(build_py):
    """Lets CMake lay out everything: Python packages into the wheel, lib/ and share/ into its data."""

    def run(self) -> None:
        """Replaces the copying of Python files, which CMake does as well."""
        library = "lib/site-packages"
        stage = install_stage(ROOT / "build" / "pip", library)
        shutil.copytree(stage / library, self.build_lib, dirs_exist_ok=True, ignore=NOT_IN_WHEEL)
        shutil.rmtree(stage / library)
        shutil.rmtree(stage / "bin")  # pip writes the console script itself
        self.distribution.data_files = list_files(stage)


def install_stage(build: Path, library: str) -> Path:
    """Configure, build and install into a folder of the build; returns that folder."""
    prefix, stage = find_ament_prefix(), build / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    environment = dict(os.environ, AMENT_PREFIX_PATH=str(prefix), CMAKE_PREFIX_PATH=str(prefix))
    options = [f"-DCMAKE_INSTALL_PREFIX={stage}", f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF"]
    options += [f"-DPYTHON_INSTALL_DIR={library}", f"-DPython3_INCLUDE_DIR={sysconfig.get_path('include')}"]
    for command in (["-S", ROOT, "-B", build, *options], ["--build", build], ["--install", build]):
        subprocess.run(["cmake", *command], env=environment, check=True)
    return stage


def find_ament_prefix() -> Path:
    """The prefix that holds the message generators: where pip put them for this build, or the venv."""
    found = importlib.util.find_spec("rosidl_adapter")
    if found is None or found.origin is None:
        raise SystemExit("The ROS 2 message generators are missing: run pip without --no-build-isolation.")
    return next(parent for parent in Path(found.origin).parents if (parent / "share" / "ament_index").exists())


def list_files(stage: Path) -> list[tuple[str, list[str]]]:
    """Every file below `stage` as setuptools wants it: (folder in the prefix, files)."""
    folders = sorted({path.parent for path in stage.rglob("*") if path.is_file()})
    return [
        (str(folder.relative_to(stage)), [os.path.relpath(path, ROOT) for path in folder.iterdir() if path.is_file()])
        for folder in folders
    ]


setup(
    version=ElementTree.parse(ROOT / "package.xml").findtext("version"),
    packages=list(PACKAGE_FOLDERS),
    package_dir=PACKAGE_FOLDERS,
    install_requires=pins.read_requirements("requirements.txt") + pins.read_requirements("tools/requirements-apt.txt"),
    extras_require={"ros": [line for name, line in pins.read_pins().items() if name.startswith("ros-")]},
    cmdclass={"build_py": BuildWithCMake},
    distclass=BinaryDistribution,
)
