"""Which OpenGL backend MuJoCo renders with when there is no display: EGL where a device answers, else OSMesa."""

from __future__ import annotations

import ctypes
import os
from collections.abc import MutableMapping

OSMESA_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
INSTALL_HINT = (
    "Install a software renderer: sudo apt install libegl1 libgl1-mesa-dri   (or: sudo apt install libosmesa6)"
)


def choose_backend(environ: MutableMapping[str, str] = os.environ) -> str:
    """Set MUJOCO_GL (unless the user did) and one software-rendering thread per process; return the backend's name.

    With neither library present the choice stays `egl`, and the first rendering explains what to install.
    """
    environ.setdefault("LP_NUM_THREADS", "1")
    if not environ.get("MUJOCO_GL"):
        environ["MUJOCO_GL"] = "osmesa" if not egl_device_answers() and _loads_any(OSMESA_LIBRARIES) else "egl"
    return environ["MUJOCO_GL"]


def egl_device_answers() -> bool:
    """Whether libEGL loads and knows at least one device, a GPU or the software one."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if not address:
        return False
    query_devices = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(
        address
    )
    count = ctypes.c_int(0)
    return bool(query_devices(0, None, ctypes.byref(count))) and count.value > 0


def explain_failure(error: Exception) -> str:
    """One sentence for a user whose machine cannot render."""
    backend = os.environ.get("MUJOCO_GL", "")
    return f"Cannot render the simulated camera (MUJOCO_GL={backend!r}): {error}. {INSTALL_HINT}"


def _loads_any(libraries: tuple[str, ...]) -> bool:
    for name in libraries:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False
