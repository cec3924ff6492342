"""Builds the stand-in interface packages once and makes them importable in this process and its children.

Where a ROS installation has the real packages, those are used.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "interfaces"
BUILD = ROOT / "build" / "standins"
PACKAGES = ("control_msgs", "controller_manager_msgs", "moveit_msgs")


def provide(package: str) -> dict[str, str]:
    """Make `package` importable, building it when its sources changed. The environment that a child process needs."""
    if package not in PACKAGES:
        raise ValueError(f"{package} is no stand-in; there are {', '.join(PACKAGES)}.")
    if str(_site(package)) not in sys.path and importlib.util.find_spec(package) is not None:
        return {}
    prefix = _build(package)
    # The type support of a message is looked up by library name along this variable, at run time.
    libraries = f"{prefix / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    if str(_site(package)) not in sys.path:
        sys.path.append(str(_site(package)))
        os.environ["LD_LIBRARY_PATH"] = libraries
        for library in sorted((prefix / "lib").glob("lib*typesupport*_c*.so")):
            ctypes.CDLL(str(library))  # the variable counts for children only; loaded libraries are found by name
        importlib.invalidate_caches()
    return {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"], "PYTHONPATH": str(_site(package))}


def _site(package: str) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return BUILD / package / "install" / "lib" / version / "site-packages"


def _build(package: str) -> Path:
    """The install prefix of a package that is up to date with its sources."""
    folder = BUILD / package
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in parallel build once
        stamp, wanted = folder / "built_from", _fingerprint(package)
        if not stamp.exists() or stamp.read_text() != wanted:
            _run_cmake(package, folder)
            stamp.write_text(wanted)
    return folder / "install"


def _fingerprint(package: str) -> str:
    files = [SOURCES / "standin.cmake", *sorted((SOURCES / package).rglob("*.*"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files) + sys.prefix.encode()).hexdigest()


def _run_cmake(package: str, folder: Path) -> None:
    environment = {**os.environ, "AMENT_PREFIX_PATH": os.environ.get("AMENT_PREFIX_PATH", sys.prefix)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    python = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    configure = ["cmake", "-S", SOURCES / package, "-B", folder / "cmake", "-DBUILD_TESTING=OFF"]
    configure += [f"-DCMAKE_INSTALL_PREFIX={folder / 'install'}", f"-DPython3_EXECUTABLE={sys.executable}"]
    configure += [f"-DPYTHON_INSTALL_DIR={python}", f"-DCMAKE_PREFIX_PATH={sys.prefix}", "-DCMAKE_BUILD_TYPE=Debug"]
    configure += [f"-DCMAKE_INSTALL_RPATH={folder / 'install' / 'lib'}"]
    for command in (configure, ["cmake", "--build", folder / "cmake"], ["cmake", "--install", folder / "cmake"]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (
            f"{package}: {' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
