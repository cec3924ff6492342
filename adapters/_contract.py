"""What an exported network leaves unsaid, as a YAML file: rate, joints, observation terms, meaning of actions.

    file: policy.onnx                 # or a .pt of TorchScript; package:<python package>/<path> for an installed one
    rate_hz: 50
    joints: [hip, knee]               # in the policy's order
    default: [0.8, -1.5]              # rad, what relative positions and actions count from
    observation:                      # side by side, in this order
      - {term: values, names: [gyro_x, gyro_y, gyro_z], unit: rad/s, scale: 0.25}
      - {term: joint_position, relative: true}
      - {term: joint_velocity, scale: 0.05}
      - {term: last_action}
      - {term: phase, period_s: 0.8}
    action: {scale: 0.25, offset: default, clip: 100}

Optional: clip (of observations), history, horizon, recurrent, reset, images, input, output. `values` are read from
joint_states by name, whoever publishes them there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

FILE = "policy.yaml"
PACKAGE = "package:"
KEYS = (
    *("file", "rate_hz", "joints", "default", "observation", "action", "clip", "history", "horizon"),
    *("recurrent", "reset", "images", "input", "output"),
)
TERMS = {  # {term: the keys it may have beside `term` and `scale`}
    "values": ("names", "unit"),
    "joint_position": ("relative",),
    "joint_velocity": (),
    "last_action": (),
    "phase": ("period_s", "offsets", "order"),
}
ORDERS = ("sin_cos", "cos_sin")


@dataclass(frozen=True)
class Term:
    """One part of the observation vector. `scale` [n] multiplies it."""

    kind: str
    scale: np.ndarray
    names: tuple[str, ...] = ()
    unit: str = "1"
    relative: bool = True
    period_s: float = 1.0
    offsets: tuple[float, ...] = (0.0,)  # rad
    order: str = "sin_cos"


@dataclass(frozen=True)
class ImageTerm:
    """One image input of the network: (x / 255 - mean) / std, channels first."""

    camera: str
    input: str
    height: int
    width: int
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Memory:
    """What a network without buffers hands from one call to the next."""

    input: str
    output: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Contract:
    """The whole file, checked. Vectors over joints are [A]."""

    file: Path
    rate_hz: float
    joints: tuple[str, ...]
    default: np.ndarray
    terms: tuple[Term, ...]
    scale: np.ndarray
    offset: np.ndarray
    action_clip: float
    clip: float
    history: int = 1
    horizon: int = 1
    recurrent: tuple[Memory, ...] = ()
    reset: str = ""  # a method of a TorchScript module that forgets
    images: tuple[ImageTerm, ...] = ()
    input: str = ""
    output: str = ""
    names: tuple[tuple[str, str], ...] = field(default=())  # (name, unit) of all `values`

    @property
    def stateful(self) -> bool:
        """One call depends on the calls before."""
        return bool(self.recurrent or self.reset or any(term.kind == "phase" for term in self.terms))


def read_contract(path: Path) -> Contract:
    """Read policy.yaml (or the folder that holds it). Raises ValueError with file, entry and what is allowed."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"checkpoint: {file} does not exist; write down there what the network's inputs mean")
    try:
        values = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: is not YAML ({error})") from None
    return _Reader(file).contract(values)


class _Reader:
    """Turns values into a contract; errors begin with the file."""

    def __init__(self, file: Path):
        self.file = file

    def contract(self, values: Any) -> Contract:
        values = self._mapping("the file", values, KEYS, ("file", "rate_hz", "joints", "observation", "action"))
        joints = tuple(str(name) for name in values["joints"])
        self._require(0.1 <= values["rate_hz"] <= 1000, "rate_hz", values["rate_hz"], "0.1 to 1000 Hz")
        default = self._vector("default", values.get("default", 0.0), len(joints))
        action = self._mapping("action", values["action"], ("scale", "offset", "clip"), ())
        offset = action.get("offset", "default")
        terms = tuple(self._term(entry, len(joints)) for entry in values["observation"])
        known = dict.fromkeys((name, term.unit) for term in terms for name in term.names)
        for name in ("history", "horizon"):
            self._require(values.get(name, 1) >= 1, name, values.get(name, 1), "1 and more")
        return Contract(
            file=self._policy_file(str(values["file"])),
            rate_hz=float(values["rate_hz"]),
            joints=joints,
            default=default,
            terms=terms,
            scale=self._vector("action.scale", action.get("scale", 1.0), len(joints)),
            offset=default if offset == "default" else self._vector("action.offset", offset, len(joints)),
            action_clip=float(action.get("clip", np.inf)),
            clip=float(values.get("clip", np.inf)),
            history=int(values.get("history", 1)),
            horizon=int(values.get("horizon", 1)),
            recurrent=tuple(
                Memory(**self._mapping("recurrent", entry, ("input", "output", "shape"), ("input", "output", "shape")))
                for entry in values.get("recurrent", ())
            ),
            reset=str(values.get("reset", "")),
            images=tuple(self._image(entry) for entry in values.get("images", ())),
            input=str(values.get("input", "")),
            output=str(values.get("output", "")),
            names=tuple(known),
        )

    def _policy_file(self, name: str) -> Path:
        if not name.startswith(PACKAGE):
            found = self.file.parent / name
        else:
            package, _, inside = name.removeprefix(PACKAGE).partition("/")
            spec = find_spec(package)  # found, not imported: its code is not wanted
            if spec is None or spec.origin is None:
                raise ValueError(f"{self.file}: file is {name}, but the package {package} is missing; install it")
            found = Path(spec.origin).parent / inside
        self._require(found.is_file(), "file", name, "a file that exists, relative to this one")
        return found

    def _term(self, entry: Any, joints: int) -> Term:
        kind = entry.get("term") if isinstance(entry, Mapping) else entry
        self._require(kind in TERMS, "observation.term", kind, ", ".join(TERMS))
        entry = {"term": kind} if isinstance(entry, str) else entry
        entry = self._mapping(f"observation.{kind}", entry, ("term", "scale", *TERMS[kind]), ("term",))
        more = {name: value for name, value in entry.items() if name not in ("term", "scale")}
        for name in ("names", "offsets"):
            if name in more:
                more[name] = tuple(more[name])
        self._require(more.get("order", ORDERS[0]) in ORDERS, f"{kind}.order", more.get("order"), ", ".join(ORDERS))
        size = {"values": len(more.get("names", ())), "phase": 2 * len(more.get("offsets", (0.0,)))}.get(kind, joints)
        self._require(size > 0, f"{kind}.names", more.get("names"), "one name or more")
        return Term(kind, self._vector(f"{kind}.scale", entry.get("scale", 1.0), size), **more)

    def _image(self, entry: Any) -> ImageTerm:
        needed = ("camera", "input", "height", "width")
        return ImageTerm(**self._mapping("images", entry, (*needed, "mean", "std"), needed))

    def _mapping(self, name: str, value: Any, allowed: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
        self._require(isinstance(value, Mapping), name, value, f"entries {', '.join(allowed)}")
        if unknown := sorted(set(value) - set(allowed)):
            raise ValueError(f"{self.file}: {name} has {', '.join(unknown)}; allowed: {', '.join(allowed)}")
        if missing := [entry for entry in needed if entry not in value]:
            raise ValueError(f"{self.file}: {name} lacks {', '.join(missing)}")
        return value

    def _vector(self, name: str, value: Any, size: int) -> np.ndarray:
        """One number for all, or one each."""
        try:
            vector = np.broadcast_to(np.asarray(value, np.float32), (size,)).copy()
        except ValueError:
            raise ValueError(f"{self.file}: {name} is {value}; allowed: a number, or {size} of them") from None
        self._require(bool(np.isfinite(vector).all()), name, value, "finite numbers")
        return vector

    def _require(self, ok: bool, name: str, value: Any, allowed: str) -> None:
        if not ok:
            raise ValueError(f"{self.file}: {name} is {value!r}; allowed: {allowed}")
