"""Names the system packages that are missing, all at once and before anything is downloaded."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

PYTHON_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}"
# What package.xml asks of a ROS 2 installation: import name -> apt package ({} is the distribution).
FROM_ROS = {
    "cv2": "python3-opencv",
    "matplotlib": "python3-matplotlib",
    "numpy": "python3-numpy",
    "yaml": "python3-yaml",
    "ament_package": "ros-{}-ament-cmake",
    "diagnostic_msgs": "ros-{}-diagnostic-msgs",
    "lifecycle_msgs": "ros-{}-lifecycle-msgs",
    "rosidl_generator_py": "ros-{}-rosidl-default-generators",
    "sensor_msgs": "ros-{}-sensor-msgs",
    "std_srvs": "ros-{}-std-srvs",
    "trajectory_msgs": "ros-{}-trajectory-msgs",
}


def find_missing(ros_distro: str | None = None) -> list[tuple[str, str]]:
    """What is missing and the apt packages that bring it; `ros_distro` where an installation is sourced."""
    checks = [
        ("a C compiler", "build-essential", _has_program("CC", "cc", "gcc", "clang")),
        ("a C++ compiler", "build-essential", _has_program("CXX", "c++", "g++", "clang++")),
        ("the Python headers (Python.h)", f"{PYTHON_PACKAGE}-dev", _has_python_headers()),
        ("Python's venv", f"{PYTHON_PACKAGE}-venv", importlib.util.find_spec("ensurepip") is not None),
        ("OpenGL for rendering without a screen (libEGL)", "libegl1 libgl1", _has_headless_gl()),
    ]
    if ros_distro:
        checks.append(("CMake", "cmake", shutil.which("cmake") is not None))
        checks += [
            (f"the Python module {name}", package.format(ros_distro), importlib.util.find_spec(name) is not None)
            for name, package in FROM_ROS.items()
        ]
    return [(what, packages) for what, packages, is_present in checks if not is_present]


def describe(missing: list[tuple[str, str]]) -> str:
    """What is missing and the one line that installs it, as text for the user."""
    packages = sorted({package for _, names in missing for package in names.split()})
    install = f"{'' if os.geteuid() == 0 else 'sudo '}apt install {' '.join(packages)}"
    return "\n".join(["This machine lacks:", *(f"  - {what}" for what, _ in missing), f"Install it with: {install}"])


def _has_program(variable: str, *names: str) -> bool:
    chosen = os.environ.get(variable, "").split()
    return any(shutil.which(name) for name in chosen[:1] or names)


def _has_python_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def _has_headless_gl() -> bool:
    has_egl = _loads("libEGL.so.1") and (_loads("libOpenGL.so.0") or _loads("libGL.so.1"))
    return has_egl or _loads("libOSMesa.so.8") or _loads("libOSMesa.so.6")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
