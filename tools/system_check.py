"""Names the system packages that are missing, all at once and before anything is downloaded."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

PYTHON_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}"


def find_missing() -> list[tuple[str, str]]:
    """What is missing and the apt packages that bring it."""
    checks: list[tuple[str, str, Callable[[], bool]]] = [
        ("a C compiler", "build-essential", lambda: _has_program("CC", "cc", "gcc", "clang")),
        ("a C++ compiler", "build-essential", lambda: _has_program("CXX", "c++", "g++", "clang++")),
        ("the Python headers (Python.h)", f"{PYTHON_PACKAGE}-dev", _has_python_headers),
        ("Python's venv", f"{PYTHON_PACKAGE}-venv", lambda: importlib.util.find_spec("ensurepip") is not None),
        ("OpenGL for rendering without a screen (libEGL)", "libegl1 libgl1", _has_headless_gl),
    ]
    return [(what, packages) for what, packages, is_present in checks if not is_present()]


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
    return (_loads("libEGL.so.1") and (_loads("libOpenGL.so.0") or _loads("libGL.so.1"))) or any(
        _loads(name) for name in ("libOSMesa.so.8", "libOSMesa.so.6")
    )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
