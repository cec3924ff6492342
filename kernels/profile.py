"""Measured times of candidates, one JSON file per device, valid only for the versions it was measured with."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch

PACKAGES = ("torch", "triton", "flashinfer-python", "phyai_ros")


def default_folder() -> Path:
    """Where profiles are kept on this machine: phyai_ros/kernels in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phyai_ros" / "kernels"


def device_name(device: torch.device) -> str:
    """What identifies the hardware: the GPU's name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def installed_versions() -> dict[str, str]:
    """Versions a measurement depends on; a package that is not installed is left out."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@dataclass
class Profile:
    """times_us[op][problem][candidate] in microseconds; a sentence instead where the candidate failed."""

    device: str
    versions: dict[str, str]
    times_us: dict[str, dict[str, dict[str, float | str]]] = field(default_factory=dict)

    @classmethod
    def empty(cls, device: torch.device) -> Profile:
        """A profile of this machine without measurements."""
        return cls(device_name(device), installed_versions())

    def record(self, op: str, problem: str, candidate: str, figure: float | str) -> None:
        """Keeps one measurement, replacing an older one."""
        figure = figure if isinstance(figure, str) else round(figure, 2)
        self.times_us.setdefault(op, {}).setdefault(problem, {})[candidate] = figure

    def refuse(self, device: torch.device) -> str | None:
        """Why these measurements say nothing about `device` and what is installed now, or None."""
        if self.device != device_name(device):
            return f"measured on {self.device}, this is {device_name(device)}"
        now = installed_versions()
        changed = [name for name in PACKAGES if self.versions.get(name) != now.get(name)]
        if changed:
            pairs = (f"{name} {self.versions.get(name, 'absent')}, now {now.get(name, 'absent')}" for name in changed)
            return "measured with " + "; ".join(pairs)
        return None

    def save(self, folder: Path) -> Path:
        """Writes <device>.json into `folder` and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = profile_path(folder, self.device)
        content = {"device": self.device, "versions": self.versions, "times_us": self.times_us}
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        return path


def profile_path(folder: Path, device: str) -> Path:
    """Where the profile of a device lies: nvidia-h200.json for NVIDIA H200."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json")


def load_profile(folder: Path, device: torch.device) -> Profile | None:
    """The profile of this device, or None where there is none. Raises ValueError for a file that is not one."""
    path = profile_path(folder, device_name(device))
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        return Profile(content["device"], dict(content["versions"]), dict(content["times_us"]))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a kernel profile ({error}); delete it or measure again.") from error
